// The reference: softmax(scale q k^T) v written out, in float32 whatever the input dtype. One
// sample at a time, sliced to its own keys, so that rows behind them cannot reach the result. On
// CUDA it relies on torch's default of no TF32 in float32 matrix products.
#include <algorithm>
#include <limits>

#include "lib/attention/backends.h"

namespace diptych {
namespace {

constexpr std::int64_t kMaxLogits = std::int64_t{1} << 26;  // held at a time: 256 MiB of float32

// q [queries, kv_heads, group, head_dim], k and v [keys, kv_heads, head_dim], float32; query j sees
// keys up to first_limit + j where causal. Returns q's shape.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
              std::int64_t first_limit) {
  const std::int64_t queries = q.size(0), kv_heads = q.size(1), group = q.size(2), dim = q.size(3);
  const std::int64_t keys = k.size(0);
  // The query heads of a group are further rows of their key head's product.
  const Tensor rows = q.permute({1, 2, 0, 3}).reshape({kv_heads, group * queries, dim});
  Tensor logits = at::bmm(rows, k.permute({1, 2, 0}));  // [kv_heads, group * queries, keys]
  if (causal) {
    const Tensor hidden =
        at::ones({queries, keys}, k.options().dtype(at::kBool)).triu(first_limit + 1);
    logits.view({kv_heads, group, queries, keys})
        .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  }
  const Tensor out = at::bmm(at::softmax(logits, -1), v.permute({1, 0, 2}));
  return out.view({kv_heads, group, queries, dim}).permute({2, 0, 1, 3});
}

class MathAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "math"; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return dtype_unsupported(kind);
  }

  Tensor forward(const AttentionCall& call) const override {
    check_call(call);
    require_supported(*this, call);
    Tensor out = at::empty(call.q.sizes(), call.q.options());
    for_each_sample(*call.lengths, [&](const SampleRows& rows) {
      Tensor own = out.narrow(0, rows.first_query, rows.queries);
      forward_sample(call, rows, own);
    });
    return out;
  }

 private:
  static void forward_sample(const AttentionCall& call, const SampleRows& rows, Tensor& out) {
    const std::int64_t queries = rows.queries, keys = rows.keys;
    const Tensor q = call.q.narrow(0, rows.first_query, queries);
    const Tensor k = call.k.select(0, rows.sample).narrow(0, 0, keys).to(at::kFloat);
    const Tensor v = call.v.select(0, rows.sample).narrow(0, 0, keys).to(at::kFloat);
    const std::int64_t heads = q.size(1), dim = q.size(2);
    const std::int64_t block = std::clamp<std::int64_t>(kMaxLogits / (heads * keys), 1, queries);
    for (std::int64_t begin = 0; begin < queries; begin += block) {
      const std::int64_t count = std::min(block, queries - begin);
      const Tensor scaled = (q.narrow(0, begin, count).to(at::kFloat) * call.scale)
                                .reshape({count, k.size(1), heads / k.size(1), dim});
      const Tensor result = attend(scaled, k, v, call.causal, keys - queries + begin);
      out.narrow(0, begin, count).copy_(result.reshape({count, heads, dim}));
    }
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_math() {
  return std::make_unique<MathAttention>();
}

}  // namespace diptych

// The reference: softmax(scale q k^T) v written out, in float32 whatever the input dtype, in the
// order of torch's kernels for the CPU: products are scaled, and rows divided by their sums last.
// Rows that are divided before the values are further from what was recorded with these kernels.
// One sample at a time, sliced to its own keys, so that rows behind them cannot reach the result.
// On CUDA it relies on torch's default of no TF32 in float32 matrix products.
#include <algorithm>
#include <limits>

#include "lib/attention/backends.h"

namespace diptych {
namespace {

constexpr std::int64_t kMaxLogits = std::int64_t{1} << 26;  // held at a time: 256 MiB of float32

// Some queries of a sample and all of its keys, in float32.
struct Block {
  Tensor q;     // [queries, kv_heads, group, head_dim]
  Tensor k, v;  // [keys, kv_heads, head_dim]
  Tensor bias;  // [heads or 1, queries or 1, keys], or undefined
  double scale;
  bool causal = false;
  std::int64_t first_limit = 0;  // where causal: query j sees keys up to first_limit + j
};

// shares [n, rows, keys] times values [n, keys, columns].
using SumValues = Tensor (*)(const Tensor& shares, const Tensor& values);

Tensor sum_values(const Tensor& shares, const Tensor& values) {
  return at::bmm(shares, values);
}

// As MKL sums a product of float32 on a CPU with AVX-512.
Tensor sum_values_in_order(const Tensor& shares, const Tensor& values) {
  constexpr std::int64_t kTogether = 256;
  const std::int64_t keys = shares.size(2);
  const Tensor sum = at::zeros({shares.size(0), shares.size(1), values.size(2)}, values.options());
  for (std::int64_t begin = 0; begin < keys; begin += kTogether) {
    const Tensor part = at::zeros_like(sum);
    for (std::int64_t key = begin; key < std::min(begin + kTogether, keys); ++key)
      part.addcmul_(shares.narrow(2, key, 1), values.narrow(1, key, 1));
    sum.add_(part);
  }
  return sum;
}

struct Attended {
  Tensor out;          // as q
  Tensor log_sum_exp;  // [queries, heads], where it was asked for
};

Attended attend(const Block& block, bool wants_log_sum_exp, SumValues sum_values) {
  const auto& [q, k, v, bias, scale, causal, first_limit] = block;
  const std::int64_t queries = q.size(0), kv_heads = q.size(1), group = q.size(2), dim = q.size(3);
  const std::int64_t keys = k.size(0);
  // The query heads of a group are further rows of their key head's product.
  const Tensor rows = q.permute({1, 2, 0, 3}).reshape({kv_heads, group * queries, dim});
  // [kv_heads, group * queries, keys]
  const Tensor logits = at::bmm(rows, k.permute({1, 2, 0})).mul_(scale);
  if (causal) {
    const Tensor hidden =
        at::ones({queries, keys}, k.options().dtype(at::kBool)).triu(first_limit + 1);
    logits.view({kv_heads, group, queries, keys})
        .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
  }
  if (bias.defined()) logits.view({kv_heads * group, queries, keys}).add_(bias);
  Attended result;
  if (wants_log_sum_exp)
    result.log_sum_exp = at::logsumexp(logits, -1).view({kv_heads * group, queries}).t();
  const Tensor shares = logits.sub_(logits.amax(-1, /*keepdim=*/true)).exp_();
  const Tensor out = sum_values(shares, v.permute({1, 0, 2})).div_(shares.sum(-1, true));
  result.out = out.view({kv_heads, group, queries, dim}).permute({2, 0, 1, 3});
  return result;
}

// The part of a call's bias for `count` queries of a sample from `first` on.
Tensor bias_of(const AttentionCall& call, const SampleRows& rows, std::int64_t first,
               std::int64_t count) {
  if (call.last_key_bias.defined()) return last_key_mask(call, rows.sample, 1, rows.keys)[0];
  if (!call.bias.defined()) return {};
  return call.bias.narrow(1, first, count).narrow(2, 0, rows.keys);
}

class MathAttention final : public AttentionBackend {
 public:
  MathAttention(std::string_view name, SumValues sum_values)
      : name_(name), sum_values_(sum_values) {}
  std::string_view name() const override { return name_; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return dtype_unsupported(kind);
  }

  bool takes_last_key_bias(const AttentionKind& kind) const override {
    return !kind_unsupported(kind);
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
  void forward_sample(const AttentionCall& call, const SampleRows& rows, Tensor& out) const {
    const std::int64_t queries = rows.queries, keys = rows.keys;
    const Tensor q = call.q.narrow(0, rows.first_query, queries);
    const Tensor k = call.k.select(0, rows.sample).narrow(0, 0, keys).to(at::kFloat);
    const Tensor v = call.v.select(0, rows.sample).narrow(0, 0, keys).to(at::kFloat);
    const std::int64_t heads = q.size(1), dim = q.size(2);
    const std::int64_t block = std::clamp<std::int64_t>(kMaxLogits / (heads * keys), 1, queries);
    for (std::int64_t begin = 0; begin < queries; begin += block) {
      const std::int64_t count = std::min(block, queries - begin);
      const Tensor own = q.narrow(0, begin, count)
                             .to(at::kFloat)
                             .reshape({count, k.size(1), heads / k.size(1), dim});
      const Attended result = attend({own, k, v, bias_of(call, rows, begin, count), call.scale,
                                      call.causal, keys - queries + begin},
                                     call.log_sum_exp.defined(), sum_values_);
      out.narrow(0, begin, count).copy_(result.out.reshape({count, heads, dim}));
      if (call.log_sum_exp.defined())
        call.log_sum_exp.narrow(0, rows.first_query + begin, count).copy_(result.log_sum_exp);
    }
  }

  std::string_view name_;
  SumValues sum_values_;
};

}  // namespace

std::unique_ptr<AttentionBackend> make_math() {
  return std::make_unique<MathAttention>("math", sum_values);
}
std::unique_ptr<AttentionBackend> make_math_in_order() {
  return std::make_unique<MathAttention>(kMathInOrder, sum_values_in_order);
}

}  // namespace diptych

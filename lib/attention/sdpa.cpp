// torch's scaled_dot_product_attention: one call for all samples where their lengths agree, else
// one call a sample, sliced to its own keys.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/attention/backends.h"

namespace diptych {
namespace {

struct Shape {
  std::int64_t samples, queries, keys, heads, kv_heads, head_dim;
  std::int64_t group() const { return heads / kv_heads; }
};

// Without a causal mask, the query heads of a group are further queries of their key head. That is
// exact, and keeps torch off its grouped path, which for float32 and on the CPU writes out the
// whole [queries, keys] matrix (check_batch_size_and_num_heads_dense in ATen's sdp_utils). q
// [samples, queries, heads, head_dim], k and v [samples, kv_heads, keys, head_dim].
Tensor attend_full(const Tensor& q, const Tensor& k, const Tensor& v, const Shape& s,
                   double scale) {
  const Tensor folded = q.reshape({s.samples, s.queries, s.kv_heads, s.group(), s.head_dim})
                            .permute({0, 2, 3, 1, 4})
                            .reshape({s.samples, s.kv_heads, s.group() * s.queries, s.head_dim});
  const Tensor out =
      at::scaled_dot_product_attention(folded, k, v, std::nullopt, 0.0, false, scale);
  return out.reshape({s.samples, s.kv_heads, s.group(), s.queries, s.head_dim})
      .permute({0, 3, 1, 2, 4});
}

// With a mask the key heads are repeated instead, so that all heads can share it. `mask`:
// broadcasts to [samples, heads, queries, keys]. q as above -> q's shape.
Tensor attend_masked(const Tensor& q, const Tensor& k, const Tensor& v, const Shape& s,
                     double scale, const std::optional<Tensor>& mask, bool upper_left_causal) {
  const auto repeat = [&s](const Tensor& keys) {
    return keys.unsqueeze(2)
        .expand({s.samples, s.kv_heads, s.group(), s.keys, s.head_dim})
        .reshape({s.samples, s.heads, s.keys, s.head_dim});
  };
  const Tensor out = at::scaled_dot_product_attention(q.transpose(1, 2), repeat(k), repeat(v), mask,
                                                      0.0, upper_left_causal, scale);
  return out.transpose(1, 2);
}

// Which keys a query sees: bool [queries, keys].
Tensor causal_mask(const Shape& s, const at::TensorOptions& options) {
  return at::ones({s.queries, s.keys}, options.dtype(at::kBool)).tril(s.keys - s.queries);
}

// torch's is_causal is aligned to the upper left: right for a square only.
Tensor attend_causal(const Tensor& q, const Tensor& k, const Tensor& v, const Shape& s,
                     double scale) {
  const bool square = s.queries == s.keys;
  std::optional<Tensor> mask;
  if (!square) mask = causal_mask(s, q.options());
  return attend_masked(q, k, v, s, scale, mask, square);
}

// Of the call's samples from `first` on: [samples or 1, heads or 1, queries or 1, keys], or
// undefined.
Tensor bias_of(const AttentionCall& call, std::int64_t first, const Shape& s) {
  if (call.last_key_bias.defined()) return last_key_mask(call, first, s.samples, s.keys);
  if (!call.bias.defined()) return {};
  return call.bias.narrow(1, 0, s.queries).narrow(2, 0, s.keys).unsqueeze(0);
}

// `bias`: of bias_of().
Tensor attend_biased(const Tensor& q, const Tensor& k, const Tensor& v, const Shape& s,
                     double scale, const Tensor& bias, bool causal) {
  Tensor mask = bias;
  if (causal) {
    mask = mask.masked_fill(causal_mask(s, q.options()).logical_not_(),
                            -std::numeric_limits<float>::infinity());
  }
  return attend_masked(q, k, v, s, scale, mask, false);
}

// On the CPU torch's kernel takes the logits of a query that are all NaN for masked ones, and gives
// zeros. `out` as q, k as attend_full()'s.
Tensor with_nan(const Tensor& out, const Tensor& q, const Tensor& k) {
  if (!out.is_cpu()) return out;
  const auto is_finite = [](const Tensor& all) {
    return std::isfinite(all.sum(at::kFloat).item<float>());
  };
  if (is_finite(q) && is_finite(k)) return out;
  // What is finite gives 0, of a key for its whole sample.
  return out + (q - q) + (k - k).sum({1, 2, 3}, /*keepdim=*/true).to(out.scalar_type());
}

// Samples [first, first + s.samples) of the call, whose queries begin at row first_query.
Tensor attend_samples(const AttentionCall& call, std::int64_t first, std::int64_t first_query,
                      const Shape& s) {
  const auto heads_first = [&](const Tensor& keys) {
    return keys.narrow(0, first, s.samples).narrow(1, 0, s.keys).transpose(1, 2);
  };
  const Tensor q = call.q.narrow(0, first_query, s.samples * s.queries)
                       .reshape({s.samples, s.queries, s.heads, s.head_dim});
  const Tensor k = heads_first(call.k), v = heads_first(call.v);
  const bool masked = call.causal && s.queries > 1;  // the last query sees every key
  if (const Tensor bias = bias_of(call, first, s); bias.defined()) {
    return with_nan(attend_biased(q, k, v, s, call.scale, bias, masked), q, k)
        .reshape({s.samples * s.queries, s.heads, s.head_dim});
  }
  const Tensor out =
      masked ? attend_causal(q, k, v, s, call.scale) : attend_full(q, k, v, s, call.scale);
  return with_nan(out.reshape(q.sizes()), q, k)
      .reshape({s.samples * s.queries, s.heads, s.head_dim});
}

bool takes_bias(const AttentionKind& kind) {
  return kind.device.is_cpu() || kind.dtype == at::kFloat;
}

class SdpaAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "sdpa"; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return dtype_unsupported(kind);
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (has_bias(call) && !takes_bias(kind_of(call)))
      return "takes a bias on a GPU in float32 alone";
    return log_sum_exp_unsupported(call);
  }

  bool takes_last_key_bias(const AttentionKind& kind) const override {
    return !kind_unsupported(kind) && takes_bias(kind);
  }

  Tensor forward(const AttentionCall& call) const override {
    check_call(call);
    require_supported(*this, call);
    const AttentionLengths& lengths = *call.lengths;
    const bool equal_k = std::all_of(lengths.k.begin(), lengths.k.end(),
                                     [&](std::int64_t k) { return k == lengths.max_k; });
    Shape shape{lengths.samples(), lengths.max_q,  lengths.max_k,
                call.q.size(1),    call.k.size(2), call.q.size(2)};
    if (equal_k && lengths.equal_q()) return attend_samples(call, 0, 0, shape);
    shape.samples = 1;
    std::vector<Tensor> outputs;
    for_each_sample(lengths, [&](const SampleRows& rows) {
      shape.queries = rows.queries;
      shape.keys = rows.keys;
      outputs.push_back(attend_samples(call, rows.sample, rows.first_query, shape));
    });
    return at::cat(outputs);
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_sdpa() {
  return std::make_unique<SdpaAttention>();
}

}  // namespace diptych

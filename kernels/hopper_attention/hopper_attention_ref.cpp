#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/hopper_attention/hopper_attention.h"
#include "kernels/host_float.h"

namespace diptych::kernels {
namespace {

struct Row {
  std::int64_t sample, row, head, keys;
};

template <typename T>
void attend_row(const HopperAttentionArgs& args, const Row& at) {
  const std::int64_t kv_head = at.head / (args.heads / args.kv_heads) * kHopperHeadDim;
  const T* q =
      static_cast<const T*>(args.q) + at.row * args.q_stride + at.head * args.q_head_stride;
  const T* k = static_cast<const T*>(args.keys) + at.sample * args.key_sample_stride + kv_head;
  const T* v = static_cast<const T*>(args.values) + at.sample * args.value_sample_stride + kv_head;
  std::vector<double> weights;
  for (std::int64_t j = 0; j < at.keys; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < kHopperHeadDim; ++d) {
      dot +=
          static_cast<double>(widen(q[d])) * static_cast<double>(widen(k[j * args.key_stride + d]));
    }
    weights.push_back(dot * static_cast<double>(args.scale));
  }
  if (args.last_key_bias != nullptr)
    weights.back() += static_cast<double>(args.last_key_bias[at.sample]);
  const double most = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - most);
  T* out = static_cast<T*>(args.out) + (at.row * args.heads + at.head) * kHopperHeadDim;
  for (std::int64_t d = 0; d < kHopperHeadDim; ++d) {
    double value = 0;
    for (std::int64_t j = 0; j < at.keys; ++j) {
      // Rounded as the kernel rounds a weight, but for what its largest logit is by then.
      const double weight =
          widen(round_to<T>(static_cast<float>(weights[static_cast<std::size_t>(j)])));
      value += weight * static_cast<double>(widen(v[j * args.value_stride + d]));
    }
    out[d] = round_to<T>(static_cast<float>(value / sum));
  }
  if (args.log_sum_exp == nullptr) return;
  args.log_sum_exp[at.row * args.log_sum_exp_stride + at.head * args.log_sum_exp_head_stride] =
      static_cast<float>(most + std::log(sum));
}

}  // namespace

void hopper_attention_ref(const HopperAttentionArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    for (std::int64_t sample = 0; sample < args.samples; ++sample) {
      const std::int64_t first = args.query_starts[sample], end = args.query_starts[sample + 1];
      for (std::int64_t row = first; row < end; ++row) {
        const std::int64_t counted =
            std::clamp<std::int64_t>(args.key_counts[sample], 1, args.capacity);
        const std::int64_t keys = counted - (args.causal ? end - row - 1 : 0);
        for (std::int64_t head = 0; head < args.heads; ++head)
          attend_row<decltype(type)>(args, {sample, row, head, keys});
      }
    }
  });
}

}  // namespace diptych::kernels

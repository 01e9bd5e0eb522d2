#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/hopper_fp8_attention/hopper_fp8_attention.h"
#include "kernels/host_float.h"
#include "kernels/quantize_attention/quantize_attention.h"

namespace diptych::kernels {
namespace {

constexpr std::int64_t kDims = kValueBlockDims;
constexpr float kLargestWeight = 64;  // about the kernel's, before they are rounded

struct Row {
  std::int64_t sample, row, head, keys;
};

void attend_row(const HopperFp8AttentionArgs& args, const Row& at) {
  const std::int64_t kv_head = at.head / (args.heads / args.kv_heads);
  const auto* q = static_cast<const HostE4m3*>(args.q) + (at.row * args.heads + at.head) * kDims;
  const auto* k = static_cast<const HostE4m3*>(args.keys) +
                  (at.sample * args.capacity * args.kv_heads + kv_head) * kDims;
  const auto* v = static_cast<const HostE4m3*>(args.values) +
                  (at.sample * args.kv_heads + kv_head) * args.value_blocks * kValueBlockBytes;
  const double scale = static_cast<double>(args.scale * *args.q_scale * *args.key_scale);
  std::vector<double> weights;
  for (std::int64_t j = 0; j < at.keys; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < kDims; ++d)
      dot += static_cast<double>(widen(q[d]) * widen(k[j * args.kv_heads * kDims + d]));
    weights.push_back(dot * scale);
  }
  const double most = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - most);
  auto* out = static_cast<HostE4m3*>(args.out) + (at.row * args.heads + at.head) * kDims;
  for (std::int64_t d = 0; d < kDims; ++d) {
    double value = 0;
    for (std::int64_t j = 0; j < at.keys; ++j) {
      // Rounded as the kernel rounds a weight, but for what its largest logit is by then.
      const auto weight = static_cast<float>(weights[static_cast<std::size_t>(j)]);
      const float rounded = widen(round_to<HostE4m3>(weight * kLargestWeight)) / kLargestWeight;
      const std::int64_t place =
          j / kValueBlockKeys * kValueBlockBytes + place_in_value_block(j % kValueBlockKeys, d);
      value += static_cast<double>(rounded * widen(v[place]));
    }
    out[d] = round_to<HostE4m3>(static_cast<float>(value / sum));
  }
  if (args.log_sum_exp == nullptr) return;
  args.log_sum_exp[at.row * args.log_sum_exp_stride + at.head * args.log_sum_exp_head_stride] =
      static_cast<float>(most + std::log(sum));
}

}  // namespace

void hopper_fp8_attention_ref(const HopperFp8AttentionArgs& args) {
  for (std::int64_t sample = 0; sample < args.samples; ++sample) {
    const std::int64_t keys = std::clamp<std::int64_t>(args.key_counts[sample], 1, args.capacity);
    for (std::int64_t row = args.query_starts[sample]; row < args.query_starts[sample + 1]; ++row) {
      for (std::int64_t head = 0; head < args.heads; ++head)
        attend_row(args, {sample, row, head, keys});
    }
  }
}

}  // namespace diptych::kernels

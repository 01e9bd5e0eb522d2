#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/decode_attention/decode_attention.h"
#include "kernels/host_float.h"

namespace diptych::kernels {
namespace {

template <typename T>
void attend_head(const DecodeAttentionArgs& args, std::int64_t row, std::int64_t sample,
                 std::int64_t head) {
  const std::int64_t dim = args.head_dim, stride = args.key_stride;
  const std::int64_t end_row =
      args.query_starts == nullptr ? args.rows : args.query_starts[sample + 1];
  const std::int64_t count = std::clamp<std::int64_t>(args.key_count[sample], 1, args.capacity);
  const std::int64_t keys =
      args.causal ? std::max<std::int64_t>(count - (end_row - 1 - row), 1) : count;
  const std::int64_t offset =
      sample * args.sample_stride + head / (args.heads / args.kv_heads) * dim;
  const T* q = static_cast<const T*>(args.q) + row * args.q_stride + head * dim;
  T* out = static_cast<T*>(args.out) + (row * args.heads + head) * dim;
  const T* k = static_cast<const T*>(args.keys) + offset;
  const T* v = static_cast<const T*>(args.values) + offset;
  std::vector<double> weights;
  for (std::int64_t j = 0; j < keys; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < dim; ++d)
      dot += static_cast<double>(widen(q[d])) * static_cast<double>(widen(k[j * stride + d]));
    weights.push_back(dot * static_cast<double>(args.scale));
  }
  const double most = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - most);
  for (std::int64_t d = 0; d < dim; ++d) {
    double value = 0;
    for (std::int64_t j = 0; j < keys; ++j)
      value += weights[static_cast<std::size_t>(j)] * static_cast<double>(widen(v[j * stride + d]));
    out[d] = round_to<T>(static_cast<float>(value / sum));
  }
}

}  // namespace

void decode_attention_ref(const DecodeAttentionArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    std::int64_t sample = 0;
    for (std::int64_t row = 0; row < args.rows; ++row) {
      while (sample + 1 < args.samples && args.query_starts[sample + 1] <= row) ++sample;
      for (std::int64_t head = 0; head < args.heads; ++head)
        attend_head<decltype(type)>(args, row, sample, head);
    }
  });
}

}  // namespace diptych::kernels

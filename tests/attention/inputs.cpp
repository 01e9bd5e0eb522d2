#include "tests/attention/inputs.h"

#include <algorithm>
#include <cmath>

#include <ATen/CPUGeneratorImpl.h>

namespace diptych::attention_cases {
namespace {

// One query row against its keys: out = sum_j softmax(scale q k_j) v_j.
void attend_row(const float* q, const float* k, const float* v, std::int64_t keys,
                std::int64_t key_stride, std::int64_t head_dim, double scale, double* out) {
  std::vector<double> weights(static_cast<std::size_t>(keys));
  for (std::int64_t j = 0; j < keys; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < head_dim; ++d) {
      dot += static_cast<double>(q[d]) * static_cast<double>(k[j * key_stride + d]);
    }
    weights[static_cast<std::size_t>(j)] = dot * scale;
  }
  const double highest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - highest);
  for (std::int64_t j = 0; j < keys; ++j) {
    for (std::int64_t d = 0; d < head_dim; ++d) {
      out[d] +=
          weights[static_cast<std::size_t>(j)] / sum * static_cast<double>(v[j * key_stride + d]);
    }
  }
}

Tensor slice_of_cache(const Tensor& keys) {
  const std::int64_t samples = keys.size(0), capacity = keys.size(1);
  Tensor cache =
      at::full({2, samples + 1, capacity + 7, keys.size(2), keys.size(3)}, 3e4, keys.options());
  Tensor slice = cache.select(0, 1).narrow(0, 1, samples).narrow(1, 3, capacity);
  slice.copy_(keys);
  return slice;
}

}  // namespace

AttentionCall Inputs::call(bool causal) const {
  return {q, k, v, &lengths, causal, 1 / std::sqrt(static_cast<double>(q.size(2)))};
}

Inputs Inputs::to(at::Device device, at::ScalarType dtype) const {
  return {q.to(device, dtype), k.to(device, dtype), v.to(device, dtype),
          AttentionLengths::make(lengths.q, lengths.k, lengths.capacity, device)};
}

Inputs Inputs::sliced() const {
  Tensor qkv = at::full({q.size(0), q.size(1) + 2 * k.size(2), q.size(2)}, 3e4, q.options());
  Tensor q_slice = qkv.narrow(1, 0, q.size(1));
  q_slice.copy_(q);
  return {q_slice, slice_of_cache(k), slice_of_cache(v), lengths};
}

Inputs make_inputs(const Case& shape, double behind, std::uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto samples = static_cast<std::int64_t>(shape.q.size());
  Inputs inputs;
  inputs.lengths = AttentionLengths::make(shape.q, shape.k, shape.capacity, at::kCPU);
  const auto normal = [&generator](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::TensorOptions(at::kFloat));
  };
  // Twice as wide as the keys: an attention that is far from uniform.
  inputs.q = normal({inputs.lengths.total_q, shape.heads, shape.head_dim}) * 2;
  inputs.k = normal({samples, shape.capacity, shape.kv_heads, shape.head_dim});
  inputs.v = normal({samples, shape.capacity, shape.kv_heads, shape.head_dim});
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t keys = shape.k[static_cast<std::size_t>(i)];
    inputs.k.select(0, i).narrow(0, keys, shape.capacity - keys).fill_(behind);
    inputs.v.select(0, i).narrow(0, keys, shape.capacity - keys).fill_(behind);
  }
  return inputs;
}

Tensor reference(const Inputs& inputs, bool causal) {
  const Tensor q = inputs.q.contiguous(), k = inputs.k.contiguous(), v = inputs.v.contiguous();
  const std::int64_t heads = q.size(1), head_dim = q.size(2), kv_heads = k.size(2);
  const std::int64_t key_stride = kv_heads * head_dim;
  const double scale = inputs.call(causal).scale;
  Tensor out = at::zeros(q.sizes(), at::kDouble);
  std::int64_t row = 0;
  for (std::size_t sample = 0; sample < inputs.lengths.q.size(); ++sample) {
    const std::int64_t queries = inputs.lengths.q[sample], keys = inputs.lengths.k[sample];
    const std::int64_t base = static_cast<std::int64_t>(sample) * k.size(1) * key_stride;
    for (std::int64_t i = 0; i < queries; ++i, ++row) {
      const std::int64_t seen = causal ? keys - queries + i + 1 : keys;
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t at_key = base + head / (heads / kv_heads) * head_dim;
        const std::int64_t at_query = (row * heads + head) * head_dim;
        attend_row(q.const_data_ptr<float>() + at_query, k.const_data_ptr<float>() + at_key,
                   v.const_data_ptr<float>() + at_key, seen, key_stride, head_dim, scale,
                   out.data_ptr<double>() + at_query);
      }
    }
  }
  return out;
}

double relative_max(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.to(at::kCPU, at::kDouble) - wanted;
  return difference.abs().max().item<double>() / wanted.abs().max().item<double>();
}

double relative_norm(const Tensor& got, const Tensor& wanted) {
  const Tensor difference = got.to(at::kCPU, at::kDouble) - wanted;
  return difference.norm().item<double>() / wanted.norm().item<double>();
}

}  // namespace diptych::attention_cases

#include "lib/models/qwen_mot/time_embedder.h"

#include <vector>

#include "lib/ops/ops.h"

namespace diptych {
namespace {

constexpr std::int64_t kFrequencyWidth = 256;

}  // namespace

TimeEmbedder TimeEmbedder::load(const Weights& weights, std::int64_t hidden) {
  TimeEmbedder e;
  const Weights mlp = weights.scope("mlp");
  e.mlp_0 = mlp.get("0.weight", {hidden, kFrequencyWidth});
  e.mlp_0_bias = mlp.get("0.bias", {hidden});
  e.mlp_2 = mlp.get("2.weight", {hidden, hidden});
  e.mlp_2_bias = mlp.get("2.bias", {hidden});
  return e;
}

Tensor TimeEmbedder::forward(std::span<const float> t) const {
  std::vector<Tensor> rows;
  for (const float value : t) rows.push_back(timestep_embedding(value, kFrequencyWidth));
  const Tensor frequencies = at::stack(rows).to(mlp_0.options());  // [steps, 256]
  return at::linear(at::silu(at::linear(frequencies, mlp_0, mlp_0_bias)), mlp_2, mlp_2_bias);
}

}  // namespace diptych

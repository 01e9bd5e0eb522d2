#include <cmath>

#include "lib/ops/ops.h"

namespace diptych {

// Bagel modeling/bagel/modeling_utils.py, TimestepEmbedder.timestep_embedding.
Tensor timestep_embedding(float t, std::int64_t dim, at::Device device) {
  TORCH_CHECK(dim >= 2 && dim % 2 == 0, "[timestep_embedding] dim is ", dim,
              ", expected an even number from 2");
  constexpr double kMaxPeriod = 10000;
  const std::int64_t half = dim / 2;
  const Tensor frequencies =
      at::arange(0, half, at::kFloat).mul_(-std::log(kMaxPeriod)).div_(half).exp_();
  const Tensor angles = frequencies.mul(t);
  return at::cat({angles.cos(), angles.sin()}).to(device);
}

}  // namespace diptych

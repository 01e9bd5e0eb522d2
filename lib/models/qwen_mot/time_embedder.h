// The embedding of the timestep of BAGEL and Lance. Names as in the checkpoints. Port of
// ByteDance-Seed/Bagel @056b5fd, modeling/bagel/modeling_utils.py.
#pragma once

#include <cstdint>
#include <span>

#include "lib/tensor/weights.h"

namespace diptych {

struct TimeEmbedder {
  Tensor mlp_0, mlp_0_bias;  // [hidden, 256], [hidden]
  Tensor mlp_2, mlp_2_bias;  // [hidden, hidden], [hidden]

  // `weights`: scope "time_embedder". Throws as Weights::get.
  static TimeEmbedder load(const Weights& weights, std::int64_t hidden);
  // t of every step, float32 -> [steps, hidden].
  Tensor forward(std::span<const float> t) const;
};

}  // namespace diptych

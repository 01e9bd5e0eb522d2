// How a network meets latents that are kept as x = x0 + sigma * noise: what it is given, and what
// its output says of x0. Some of a clip's frames may be known.
#pragma once

#include <cstdint>

#include "lib/tensor/types.h"

namespace diptych {

struct Preconditioning {
  float time = 0;               // what the network is told
  float c_in = 1;               // its input is x * c_in
  float c_skip = 1, c_out = 0;  // x0 = c_skip * x + c_out * output

  // Of a network that was trained as a rectified flow, for data of standard deviation 1:
  // t = sigma / (sigma + 1), c_in = c_skip = 1 - t, c_out = -t, in float32 as diffusers'
  // Cosmos2TextToImagePipeline computes them. sigma >= 0.
  static Preconditioning rectified_flow(float sigma);

  // x of any shape -> the same in float32.
  Tensor input(const Tensor& x) const;
  // x and the network's output, any floating dtype, of one shape (or one that broadcasts: the
  // outputs of several guidance branches) -> x0 in float32.
  Tensor denoised(const Tensor& x, const Tensor& output) const;
};

// The times of a clip's frames, the first `known` of which have another: float32 [frames] on the
// CPU.
Tensor frame_times(float time, float known_time, std::int64_t known, std::int64_t frames);

// x [samples, channels, frames, height, width] with its first frames taken from `given` [1 or
// samples, channels, at least `known`, height, width]; a fresh tensor, or x itself where none are
// known.
Tensor with_known_frames(const Tensor& x, const Tensor& given, std::int64_t known);

}  // namespace diptych

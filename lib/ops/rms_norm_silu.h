// RMS norm and SiLU of feature maps that are still sums: what lies between two convolutions of a
// residual autoencoder, in one pass over its maps.
#pragma once

#include <span>

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych {

// x + parts[0] + ...: [n, h, w, c] each, contiguous, at least one. Parts are what convolutions
// made, up to three, all of one dtype; that of x (undefined: none) may be wider.
struct MapSum {
  Tensor x;
  std::span<const Tensor> parts;
};

// weight [c], of the maps' dtype; undefined: neither norm nor SiLU.
struct RmsNormSilu {
  Tensor weight;
  double eps = 0;
};

// sum = `of`, rounded to the maps' dtype (contiguous; may be of.x); y = silu(s / sqrt(mean(s^2) +
// eps) * weight) of the rounded sum s over its channels, in the parts' dtype (each frame [h, w, c]
// contiguous). Either may be undefined. On a GPU everything between is float32; the reference
// rounds each operation to the dtype that it has.
void rms_norm_silu_out(const Tensor& y, const Tensor& sum, const MapSum& of,
                       const RmsNormSilu& norm, KernelPolicy policy);

// Of pairs of frames, what conv3d() with pairs reads: x [2 * pairs, h, w, c], contiguous, of the
// maps' or the parts' dtype; `before` [2, h, w, c], y of the frames before, which the last two of x
// replace; y [4 * pairs, h, w, c], each frame contiguous, as both are of the parts' dtype, which on
// a GPU has 16 bits. makes_frame_pairs() is true of c.
bool makes_frame_pairs(std::int64_t channels);
void rms_norm_silu_pairs_out(const Tensor& y, const Tensor& before, const Tensor& x,
                             const RmsNormSilu& norm, KernelPolicy policy);

}  // namespace diptych

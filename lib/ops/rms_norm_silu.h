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

// Whether the kernel makes pairs of frames of so many channels.
bool makes_frame_pairs(std::int64_t channels);
// Of pairs of frames, at least one, what conv3d() with pairs reads: x [2 * pairs, h, w, c],
// contiguous, of the maps' or the parts' dtype; `before` [2, h, w, c], y of the frames before,
// which the last two of x replace; y [4 * pairs, h, w, c], each frame contiguous, as both are of
// the parts' dtype; norm.weight is defined. Throws c10::Error for operands that do not meet, and
// InputError for what the kernel refuses: parts of float32, more channels than makes_frame_pairs()
// allows, or pixels that do not begin and end at multiples of 16 bytes.
void rms_norm_silu_pairs_out(const Tensor& y, const Tensor& before, const Tensor& x,
                             const RmsNormSilu& norm, KernelPolicy policy);

}  // namespace diptych

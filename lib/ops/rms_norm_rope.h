// Queries and keys of a diffusion transformer: normed over all heads together, then rotated.
#pragma once

#include <vector>

#include "lib/ops/ops.h"

namespace diptych {

struct RmsNormRope {
  Tensor x;  // [rows, at least parts * width], row stride free: part p's columns begin at p * width
  std::vector<Tensor> weights;  // of each part, one or two: [width] of x's dtype
  // float32 [positions, head_dim / 2], contiguous; row r is at position r % positions. Undefined:
  // rows are not rotated.
  Tensor cos{}, sin{};
  double eps = 1e-6;
};
// round(x / sqrt(mean(x^2) + eps) * weight), over the width, then, in neighbouring pairs,
// (a, b) -> round(a cos - b sin, a sin + b cos); in float32 between the roundings (torch's RMSNorm;
// diffusers' WanAttnProcessor). In place: other columns are left as they are.
void rms_norm_rope_(const RmsNormRope& args, const Kernels& kernels);

struct AxialAngles {
  std::int64_t frames, height, width;  // positions on each axis
  std::int64_t head_dim;               // even
};
// Rope over three axes: of head_dim's channels 2 * (head_dim / 6) are for each of height and width
// and the rest, in front of them, for frames, with frequencies theta^(-2j / channels) of its own.
// Angles and frequencies in float64, cosines and sines then rounded: two float32 [frames * height *
// width, head_dim / 2], rows in order (frame, y, x), on the CPU (diffusers' WanRotaryPosEmbed).
std::pair<Tensor, Tensor> axial_rope_table(const AxialAngles& angles, double theta = 10000);

}  // namespace diptych

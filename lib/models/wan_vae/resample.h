// How the stages of the Wan autoencoders change sizes: by convolutions, and in 2.2 beside them by
// shortcuts without weights.
// Port of Wan-Video/Wan2.2, wan/modules/vae2_2.py (Resample, AvgDown3D, DupUp3D); specs: lance.md
// sections 10.1 and 10.2.
#pragma once

#include "lib/models/wan_vae/blocks.h"

namespace diptych {

// Both take what convolutions read and give maps of the dtype `maps`; in tf32 they hand float16
// from one convolution to the next.

// Halves the sides and, with time_conv, the frames; the first chunk's one frame stays one.
struct WanVaeDownsample {
  WanVaeSpatialConv resample;           // resample.1
  std::optional<WanVaeConv> time_conv;  // [c, c, 3, 1, 1]
  static WanVaeDownsample load(const Weights& weights, std::int64_t channels, bool temporal,
                               const WanVaeCompute& compute);
  Tensor forward(Tensor x, at::ScalarType maps, WanVaeHistory& history) const;
  at::ScalarType input_dtype() const { return resample.weight.scalar_type(); }
};

// Doubles the sides and, with time_conv, the frames; the first chunk's one frame stays one.
struct WanVaeUpsample {
  WanVaeSpatialConv resample;           // resample.1; without its weight where `phases` are
  std::optional<WanVaeConv> time_conv;  // [2 * in, in, 3, 1, 1]: even frames, then odd ones
  // Instead of doubled pixels, where conv3d() of lib/ops takes it: wan_vae_upsample_phases() of the
  // weight.
  Tensor phases;
  static WanVaeUpsample load(const Weights& weights, std::int64_t out, std::int64_t in,
                             bool temporal, const WanVaeCompute& compute);
  // `shortcut` (undefined: none): the stage's input, of the maps' dtype, which is added as
  // wan_vae_add_repeated() adds it.
  Tensor forward(Tensor x, at::ScalarType maps, const Tensor& shortcut,
                 WanVaeHistory& history) const;
  at::ScalarType input_dtype() const { return resample.bias.scalar_type(); }

 private:
  // What `forward` makes of x [n, h, w, times * in], by `phases` with the shortcut and in `maps`,
  // or of doubled pixels without it.
  Tensor forward_phases(const Tensor& x, std::int64_t times, at::ScalarType maps,
                        const Tensor& shortcut, WanVaeHistory& history) const;
  Tensor forward_doubled(const Tensor& x, std::int64_t times, WanVaeHistory& history) const;
  // Of the stage's input to each frame.
  std::int64_t shortcut_frames() const { return time_conv ? 2 : 1; }
};

// A 3x3 convolution of doubled pixels sees each pixel more than once: weight [out, in, 3, 3] -> of
// each of the four pixels that one becomes, the sums of taps that fall on the same pixel, float32
// [4, out, 1, 2, 2, in].
Tensor wan_vae_upsample_phases(const Tensor& weight);

// Means over 2x2 pixels. Channel c of frame i of a group of `frames` becomes channel
// c * frames + i: x [n, 2 h, 2 w, c] -> [ceil(n / frames), h, w, c * frames]. Zero frames before
// the first complete its group.
Tensor wan_vae_average_down(const Tensor& x, std::int64_t frames);

// out += x repeated over `frames` frames and 2x2 pixels each. x [n, h, w, c], out
// [n * frames, 2 h, 2 w, c or c / 2]: of two channels of x the first is for the upper row. With
// out [1, ...] only the last frame of the group is there (the first chunk).
void wan_vae_add_repeated(Tensor out, const Tensor& x, std::int64_t frames);

}  // namespace diptych

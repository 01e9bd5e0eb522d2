// The steps of the autoencoder in less memory: a feature map is made some rows at a time, so that
// beside a step's input and output maps only a strip of them is held. Every convolution sees the
// rows of the neighbouring strips and every normalisation the statistics of the whole map, so the
// picture is the same but for rounding: no tiles, no seams, nothing to blend.
#pragma once

#include <cstdint>

#include "lib/models/flux_vae/flux_vae.h"

namespace diptych::vae_strips {

// `x` is consumed: its storage is overwritten.
Tensor res_block(const VaeResBlock& block, Tensor x, const VaeStrips& strips);
// conv(silu(norm(x))), padded as VaeConv::forward
Tensor normed_conv(const VaeNorm& norm, const VaeConv& conv, const Tensor& x,
                   const VaeStrips& strips);
// conv of x, every pixel doubled: [n, c, h, w] -> [n, out, 2 h, 2 w].
Tensor upsample(const VaeConv& conv, const Tensor& x, const VaeStrips& strips);
// conv with stride 2 of x, one zero column right and one row below: -> [n, out, h / 2, w / 2].
Tensor downsample(const VaeConv& conv, const Tensor& x, const VaeStrips& strips);
// Pixels that ask at a time, so that logits written out would stay within four strips.
std::int64_t attention_queries(const Tensor& x, const VaeStrips& strips);

}  // namespace diptych::vae_strips

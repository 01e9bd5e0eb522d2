// Frames larger than a tile, taken in overlapping tiles that are blended into each other.
// Port of diffusers, autoencoder_kl_wan.py (tiled_encode, tiled_decode); specs: wan.md section 10.
#pragma once

#include <cstdint>
#include <functional>

#include "lib/tensor/types.h"

namespace diptych {

struct WanVaeConfig;

struct WanVaeTiling {  // in pixels; diffusers' names and numbers
  std::int64_t tile_sample_min_height = 256, tile_sample_min_width = 256;
  std::int64_t tile_sample_stride_height = 192, tile_sample_stride_width = 192;
  // Whether a latent of h x w positions is more than one tile.
  bool splits(const WanVaeConfig& config, std::int64_t h, std::int64_t w) const;
};

struct WanVaeTile {  // in positions of the latent
  std::int64_t y, x, h, w;
};

struct WanVaeTiles {
  std::int64_t h, w;     // positions of the latent
  std::int64_t unit;     // pixels of a side that are one position of the result
  std::int64_t spatial;  // the same of the latent
  const WanVaeTiling& tiling;
};

// `make` gives a tile's result [n, h * scale, w * scale, c] with scale = spatial / unit, to be
// written to -> that of all of them, with its dtype and device. Held at a time are the result, the
// lower edges of a row of tiles and one tile.
Tensor wan_vae_blend_tiles(const WanVaeTiles& tiles,
                           const std::function<Tensor(const WanVaeTile& tile)>& make);

}  // namespace diptych

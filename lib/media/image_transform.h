// How a picture becomes the input of BAGEL's autoencoder and vision tower, and back
// (ByteDance-Seed/Bagel, data/transforms.py; spec bagel.md 3.2 to 3.4).
#pragma once

#include <cstdint>
#include <utility>

#include "lib/tensor/types.h"

namespace diptych {

// The size rule: no side over max_size, the short one at least min_size where that leaves it so,
// both multiples of `stride`. Released models: {1024, 512, 16} for the autoencoder, {980, 224, 14}
// for the vision tower.
struct ImageTransform {
  std::int64_t max_size, min_size, stride;  // pixels
  std::int64_t max_pixels = 14 * 14 * 9 * 1024;

  // The size that a picture of height x width is brought to: (height, width). Sides up to 2^31.
  std::pair<std::int64_t, std::int64_t> size(std::int64_t height, std::int64_t width) const;
  // uint8 [H, W, 3] -> uint8 of that size, bicubic; a picture that has it already is copied.
  Tensor resize(const Tensor& image) const;
};

// uint8 [H, W, 3] -> float32 [1, 3, H, W] in -1 .. 1: (x / 255 - 0.5) / 0.5.
Tensor to_model_input(const Tensor& image);
// [1, 3, H, W] in -1..1 -> uint8 [H, W, 3]; truncates as the official code does, never rounds.
Tensor to_uint8(const Tensor& image);

}  // namespace diptych

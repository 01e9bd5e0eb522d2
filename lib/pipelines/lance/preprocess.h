// From decoded pictures and frames to what Lance's autoencoder and vision tower read.
// specs: lance.md section 6.2; bytedance/Lance @4baeee0, data/transforms.py
// (VideoTransform) and data/video/transforms/. How pixels become patches: models/qwen.
#pragma once

#include <cstdint>
#include <span>

#include "lib/pipelines/lance/sizes.h"
#include "lib/tensor/types.h"

namespace diptych {

struct CropBox {
  std::int64_t top = 0, left = 0, height = 0, width = 0;  // pixels
  bool operator==(const CropBox&) const = default;
};

// The part of a picture that is resized to a bucket: as much as the bucket's ratio allows, from the
// centre. Where the whole picture has that ratio but for rounding, the official code draws the
// place of the box at random; here it is the centre.
CropBox crop_box(ImageSize picture, ImageSize bucket);

// `frames`: one picture, or the sampled frames of a clip, each uint8 [H, W, 3] on the CPU. The size
// of the first one chooses the bucket. -> float32 [3, frames, h, w] in -1 .. 1, h and w as
// LanceSourceSizes::vae.
Tensor lance_vae_pixels(std::span<const Tensor> frames, LanceResolution resolution);
// Likewise -> float32 [3, frames, h, w] with the mean and deviation of the vision tower, h and w as
// LanceSourceSizes::vit. The last frame comes twice where their number is odd.
Tensor lance_vit_pixels(std::span<const Tensor> frames, LanceResolution resolution);

}  // namespace diptych

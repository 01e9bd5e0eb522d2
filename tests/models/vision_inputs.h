// The vision tower of the recorded Lance cases, and pixels as the tower takes them.
#pragma once

#include <filesystem>

#include "lib/models/qwen/vision.h"

namespace diptych::vision_inputs {

// A choice of case 06_x2t_image: config.json, weights.safetensors (all but the patch embedding),
// expected.safetensors and vit_pixels.png.
inline const std::filesystem::path kChoice =
    std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/lance/vit";

// uint8 [T * height, width, 3], the frames one below the other -> float32 [3, T, height, width],
// normalised (lance.md 6.2).
inline Tensor normalised(const Tensor& strip, std::int64_t frames) {
  const Tensor mean = at::tensor({0.48145466, 0.4578275, 0.40821073}, at::kFloat),
               std = at::tensor({0.26862954, 0.26130258, 0.27577711}, at::kFloat);
  return ((strip.to(at::kFloat) / 255 - mean) / std)
      .reshape({frames, strip.size(0) / frames, strip.size(1), 3})
      .permute({3, 0, 1, 2});
}

// A tower with the released widths of a head but few of everything else.
inline QwenVisionConfig small_config() {
  QwenVisionConfig config;
  config.depth = 3;
  config.hidden_size = 160;
  config.num_heads = 2;
  config.intermediate_size = 72;
  config.out_hidden_size = 96;
  config.fullatt_block_indexes = {1};
  return config;
}

inline Tensor noise_patches(const VisionGrid& grid, const QwenVisionConfig& config) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(5);
  return at::randn({grid.patches(), config.patch_width()}, generator);
}

inline double relative_norm(const Tensor& found, const Tensor& expected) {
  const Tensor near = found.cpu().to(at::kFloat), far = expected.cpu().to(at::kFloat);
  return ((near - far).norm() / far.norm()).item<double>();
}

}  // namespace diptych::vision_inputs

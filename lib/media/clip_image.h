// How a picture becomes the input of CLIP's vision tower: transformers' CLIPImageProcessor.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "lib/tensor/types.h"

namespace diptych {

struct ClipImageProcessor {  // preprocessor_config.json; the values are CLIP's
  // The size that a picture is brought to, if at all: its short side, the long one in proportion
  // and rounded down, or both sides.
  bool do_resize = true;
  std::int64_t shortest_edge = 224;
  std::optional<std::array<std::int64_t, 2>> exact_size{};           // height, width: instead
  std::optional<std::array<std::int64_t, 2>> crop_size{{224, 224}};  // height, width, of the centre
  double rescale_factor = 1.0 / 255;
  std::array<double, 3> image_mean = {0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> image_std = {0.26862954, 0.26130258, 0.27577711};

  // Missing keys have the values above. Throws InputError naming file and key: for values of
  // another kind or out of range, and for a filter other than bicubic.
  static ClipImageProcessor load(const std::filesystem::path& path);
  // image uint8 [height, width, 3] -> float32 [1, 3, height, width]. A crop beyond the picture is
  // black there.
  Tensor pixels(const Tensor& image) const;
};

}  // namespace diptych

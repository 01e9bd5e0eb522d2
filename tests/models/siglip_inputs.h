// The tiny checkpoint's vision transformer and a picture of 2 x 3 patches for it.
#pragma once

#include <filesystem>

#include "lib/models/bagel/bagel.h"

namespace diptych::siglip_inputs {

inline Siglip load_tiny(at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU) {
  const std::filesystem::path folder =
      std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/checkpoint";
  const Weights weights = Weights::open(folder / "ema.safetensors", device, dtype);
  return Siglip::load(weights.scope("vit_model.vision_model"), BagelConfig::load(folder).vit);
}

inline Tensor patches() {  // float32 [6, 588] in -1..1
  return (at::arange(6 * 588, at::kLong).mul(37).remainder(101).to(at::kDouble) / 50 - 1)
      .view({6, 588})
      .to(at::kFloat);
}

inline Tensor position_ids() {  // of a table with 10 rows a side
  return at::tensor({0, 1, 2, 10, 11, 12}, at::kLong);
}

}  // namespace diptych::siglip_inputs

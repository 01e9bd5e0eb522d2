// BAGEL-7B-MoT: what stands around the backbone: checkpoint layout and the connector behind the
// vision transformer. Port of ByteDance-Seed/Bagel @056b5fd, modeling/bagel/bagel.py and
// modeling_utils.py; specs: bagel.md sections 1, 4 and 7.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/models/qwen_mot/backbone.h"
#include "lib/models/qwen_mot/latents.h"
#include "lib/models/siglip/siglip.h"
#include "lib/tensor/tensor_names.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct BagelConfig {
  QwenConfig llm;
  SiglipConfig vit;
  std::int64_t latent_patch_size = 2;
  std::int64_t vit_max_num_patch_per_side = 70;
  std::int64_t latent_channels = 16;  // vae_config.z_channels
  std::int64_t vae_downsample = 8;
  std::int64_t latent_side = 64;  // isqrt of the rows of latent_pos_embed; config.json may be stale

  // The folder's llm_config.json, vit_config.json and (where present) config.json. latent_side is
  // not among them: Bagel::checked. Throws InputError naming file and key.
  static BagelConfig load(const std::filesystem::path& folder);

  std::int64_t pixels_per_row() const { return latent_patch_size * vae_downsample; }  // 16
  std::int64_t row_width() const { return latent_patch_size * latent_patch_size * latent_channels; }
};

// Every tensor of ema.safetensors for a config (specs: bagel.md, section 1.3), the image
// understanding part included.
std::vector<TensorShape> bagel_layout(const BagelConfig& config);

// The part that looks at pictures.
struct BagelVision {
  Siglip siglip;
  Tensor fc1, fc1_bias;  // [hidden, vit hidden], [hidden]: the connector
  Tensor fc2, fc2_bias;  // [hidden, hidden], [hidden]
  Tensor pos_embed;      // [side * side, hidden]; side = vit_max_num_patch_per_side

  // `weights`: the root of ema.safetensors.
  static BagelVision load(const Weights& weights, const BagelConfig& config);
  Tensor connect(const Tensor& features) const;  // [patches, vit hidden] -> [patches, hidden]
};

struct Bagel {
  BagelConfig config;
  MotBackbone language_model;
  MotLatents latents;
  std::optional<BagelVision> vision;  // where it was loaded

  // The side of the square position table, off its rows; `fallback` for dummy weights. Throws
  // InputError where the rows are no square number.
  static std::int64_t read_latent_side(const Weights& weights, std::int64_t fallback);

  // The config with the table's side. Every tensor of the released layout must be there with its
  // shape and nothing else: throws InputError for the first that is not so. `weights`: the root of
  // ema.safetensors. Reads headers.
  static BagelConfig checked(const Weights& weights, BagelConfig config);
  // Expects the config that checked() returned. Does not load `vision` and the backbone's lm_head:
  // BagelVision::load(), MotBackbone::load_head().
  static Bagel load(const Weights& weights, const BagelConfig& config,
                    const std::optional<MotOffload>& offload = {},
                    const MatrixQuantization& quantization = {});
};

}  // namespace diptych

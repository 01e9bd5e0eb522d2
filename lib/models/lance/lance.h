// Lance-3B: what stands around the backbone: sizes, and the tensors of the released files.
// specs: lance.md section 2; bytedance/Lance @4baeee0, inference_lance.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/models/qwen/config.h"
#include "lib/models/qwen/vision_config.h"
#include "lib/models/qwen_mot/latent_positions.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

struct LanceConfig {  // of the released model
  QwenConfig llm = {.hidden_size = 2048,
                    .num_hidden_layers = 36,
                    .num_attention_heads = 16,
                    .num_key_value_heads = 2,
                    .head_dim = 128,
                    .intermediate_size = 11008,
                    .vocab_size = 151936,
                    .max_position_embeddings = 128000,
                    .mrope_section = {16, 24, 24}};
  QwenVisionConfig vit;
  LatentTable positions;
  std::int64_t row_width = 48;       // channels of the autoencoder; a latent pixel is a row
  std::int64_t pixels_per_row = 16;  // a side

  // `llm`: the folder with llm_config.json. `vit`: the one with the vision tower's config.json.
  // Throws InputError naming file and key.
  static LanceConfig load(const std::filesystem::path& llm, const std::filesystem::path& vit);
};

// Every tensor of vit.safetensors.
std::vector<TensorShape> qwen_vision_layout(const QwenVisionConfig& config);
// Every tensor of model.safetensors for a config, the vision tower (vit_model.*) among them.
std::vector<TensorShape> lance_layout(const LanceConfig& config);

}  // namespace diptych

// The sizes of a Cosmos-Predict2 transformer, as its config.json gives them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>

namespace diptych {

struct CosmosConfig {  // transformer/config.json's names; the values are Predict2-2B-Text2Image's
  // Latent frames and pixels of a latent that are one row: patch_size, always [1, 2, 2].
  static constexpr std::int64_t kPatch = 2;
  // Constants of the model's code.
  static constexpr double kEps = 1e-6, kBaseFps = 24;

  std::int64_t in_channels = 16;  // out_channels, and one more where frames may be given
  std::int64_t out_channels = 16;
  std::int64_t num_attention_heads = 16, attention_head_dim = 128;
  std::int64_t num_layers = 28;
  double mlp_ratio = 4;
  std::int64_t text_embed_dim = 1024;
  std::int64_t adaln_lora_dim = 256;
  std::array<std::int64_t, 3> max_size = {128, 240, 240};  // latent frames, height, width
  std::array<double, 3> rope_scale = {1, 4, 4};            // of the same axes
  bool concat_padding_mask = true;

  // A missing key has the value above. Throws InputError naming file and key: for a value out of
  // range and for parts of other Cosmos models (learned positions, a text projection, ...).
  static CosmosConfig load(const std::filesystem::path& path);

  std::int64_t width() const { return num_attention_heads * attention_head_dim; }
  std::int64_t inner() const {
    return static_cast<std::int64_t>(static_cast<double>(width()) * mlp_ratio);
  }
  // Whether the first frames of a clip may be given (video2world).
  bool takes_frames() const { return in_channels == out_channels + 1; }
  std::int64_t channels() const { return in_channels + (concat_padding_mask ? 1 : 0); }
  std::int64_t patch_in() const { return channels() * kPatch * kPatch; }
  std::int64_t patch_out() const { return out_channels * kPatch * kPatch; }
  // Rows on an axis: the same for all three.
  std::int64_t most_positions() const;
};

}  // namespace diptych

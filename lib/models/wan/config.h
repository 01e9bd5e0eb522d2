// The sizes of a Wan transformer, as its config.json gives them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace diptych {

struct WanConfig {  // transformer/config.json's names; the values are Wan2.1 T2V-14B's
  // Latent frames and pixels of a latent that are one row: patch_size, always [1, 2, 2].
  static constexpr std::int64_t kPatch = 2;

  std::int64_t num_attention_heads = 40;
  std::int64_t attention_head_dim = 128;
  std::int64_t in_channels = 16, out_channels = 16;
  std::int64_t text_dim = 4096, freq_dim = 256;
  std::int64_t ffn_dim = 13824;
  std::int64_t num_layers = 40;
  bool cross_attn_norm = true;
  double eps = 1e-6;
  std::optional<std::int64_t> image_dim;  // of a vision tower's rows; none: it sees no image
  std::optional<std::int64_t> pos_embed_seq_len;  // image rows that have learned positions
  std::int64_t rope_max_seq_len = 1024;           // positions of an axis

  // A missing key has the value above. Throws InputError naming file and key: for a value out of
  // range, another class, patch_size or qk_norm, and image sizes that do not fit each other.
  static WanConfig load(const std::filesystem::path& path);
  bool operator==(const WanConfig&) const = default;

  std::int64_t width() const { return num_attention_heads * attention_head_dim; }
  std::int64_t patch_in() const { return in_channels * kPatch * kPatch; }
  std::int64_t patch_out() const { return out_channels * kPatch * kPatch; }
};

}  // namespace diptych

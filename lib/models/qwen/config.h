// The sizes of a Qwen2 or Qwen3 language model, as its config.json gives them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/attention/kv_cache.h"

namespace diptych {

// What the layers of a family have whatever its config.json says. Qwen2 has biases, Qwen3 q/k-norm,
// the mixture-of-transformers models both.
struct QwenParts {
  bool attention_bias = true;  // q_proj, k_proj and v_proj have biases
  bool qk_norm = false;        // q and k are normed per head before the rotation
  bool mrope = false;          // three position ids per row; config.json has an mrope_section
};

struct QwenConfig {  // config.json's names; the values are BAGEL-7B-MoT's
  std::int64_t hidden_size = 3584;
  std::int64_t num_hidden_layers = 28;
  std::int64_t num_attention_heads = 28;
  std::int64_t num_key_value_heads = 4;
  std::int64_t head_dim = 128;  // heads * head_dim need not be hidden_size: in Qwen3 it is not
  std::int64_t intermediate_size = 18944;
  std::int64_t vocab_size = 152064;
  std::int64_t max_position_embeddings = 32768;
  double rope_theta = 1e6;
  double rms_norm_eps = 1e-6;
  // How many angles of a head are of the temporal, the vertical and the horizontal position: three
  // numbers whose sum is head_dim / 2. Empty: a row has one position.
  std::vector<std::int64_t> mrope_section;
  bool attention_bias = true, qk_norm = true;
  // The frequencies of the rotation are rounded to bfloat16 first, as in a model whose buffers were
  // cast with its weights.
  bool bf16_rope_frequencies = false;

  // Without the key head_dim it is hidden_size / num_attention_heads. Throws InputError naming file
  // and key: for a missing size, a value out of range, sizes that do not fit each other, and what
  // no layer here computes (another activation, a sliding window, another scaling of positions, or
  // an attention_bias of Qwen3, which o_proj would have, too).
  static QwenConfig load(const std::filesystem::path& path, const QwenParts& parts);

  std::int64_t q_width() const { return num_attention_heads * head_dim; }
  std::int64_t kv_width() const { return num_key_value_heads * head_dim; }
  std::int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  KvShape kv_shape() const { return {num_hidden_layers, num_key_value_heads, head_dim}; }
};

}  // namespace diptych

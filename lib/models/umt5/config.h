// Sizes and kind of a T5 or UMT5 text encoder: text_encoder/config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lib/tensor/tensor_names.h"

namespace diptych {

struct Umt5Config {  // names of config.json
  std::int64_t vocab_size = 0, d_model = 0, d_kv = 0, d_ff = 0, num_layers = 0, num_heads = 0;
  std::int64_t relative_attention_num_buckets = 32, relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;
  // From model_type: every layer of umt5 has a table of position biases of its own, in t5 the first
  // one's serves them all.
  bool bias_in_every_layer = true;
  // From feed_forward_proj: wo(gelu(wi_0 x) * wi_1 x), with the tanh form of GELU, of "gated-gelu";
  // wo(relu(wi x)) of "relu".
  bool gated_gelu = true;

  std::int64_t inner() const { return num_heads * d_kv; }  // may differ from d_model

  // Throws InputError naming the file and the key for what is missing, out of range or of a kind
  // that is not implemented.
  static Umt5Config load(const std::filesystem::path& path);
};

// The tensors of the encoder, by name and shape. The embedding is listed as "shared.weight"; files
// may have it as "encoder.embed_tokens.weight", or both.
std::vector<TensorShape> umt5_layout(const Umt5Config& config);

}  // namespace diptych

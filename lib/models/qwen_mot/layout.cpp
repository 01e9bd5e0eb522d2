#include "lib/models/qwen_mot/layout.h"

#include <fmt/format.h>

namespace diptych {

void MotLayout::expert(const std::string& layer, const QwenConfig& c, const std::string& suffix) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  add(layer + "input_layernorm" + suffix + ".weight", {hidden});
  add(layer + "post_attention_layernorm" + suffix + ".weight", {hidden});
  linear(layer + "self_attn.q_proj" + suffix, c.q_width(), hidden);
  linear(layer + "self_attn.k_proj" + suffix, c.kv_width(), hidden);
  linear(layer + "self_attn.v_proj" + suffix, c.kv_width(), hidden);
  add(layer + "self_attn.o_proj" + suffix + ".weight", {hidden, c.q_width()});
  add(layer + "self_attn.q_norm" + suffix + ".weight", {c.head_dim});
  add(layer + "self_attn.k_norm" + suffix + ".weight", {c.head_dim});
  add(layer + "mlp" + suffix + ".gate_proj.weight", {inner, hidden});
  add(layer + "mlp" + suffix + ".up_proj.weight", {inner, hidden});
  add(layer + "mlp" + suffix + ".down_proj.weight", {hidden, inner});
}

void MotLayout::backbone(const QwenConfig& config, std::int64_t row_width) {
  language_model(config);
  latents(config.hidden_size, row_width);
}

void MotLayout::language_model(const QwenConfig& c) {
  add("language_model.model.embed_tokens.weight", {c.vocab_size, c.hidden_size});
  add("language_model.lm_head.weight", {c.vocab_size, c.hidden_size});
  add("language_model.model.norm.weight", {c.hidden_size});
  add("language_model.model.norm_moe_gen.weight", {c.hidden_size});
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("language_model.model.layers.{}.", i);
    expert(layer, c, "");
    expert(layer, c, "_moe_gen");
  }
}

void MotLayout::latents(std::int64_t hidden, std::int64_t row_width) {
  linear("time_embedder.mlp.0", hidden, 256);
  linear("time_embedder.mlp.2", hidden, hidden);
  linear("vae2llm", hidden, row_width);
  linear("llm2vae", row_width, hidden);
}

}  // namespace diptych

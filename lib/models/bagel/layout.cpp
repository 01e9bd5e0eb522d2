#include <fmt/format.h>

#include "lib/models/bagel/bagel.h"

namespace diptych {
namespace {

class Layout {
 public:
  void add(std::string name, std::vector<std::int64_t> shape) {
    tensors_.push_back({std::move(name), std::move(shape)});
  }
  void linear(const std::string& name, std::int64_t out, std::int64_t in) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  }
  void norm(const std::string& name, std::int64_t width) {
    add(name + ".weight", {width});
    add(name + ".bias", {width});
  }
  std::vector<TensorShape> take() { return std::move(tensors_); }

 private:
  std::vector<TensorShape> tensors_;
};

void add_expert(Layout& layout, const std::string& layer, const QwenConfig& c,
                const std::string& suffix) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  layout.add(layer + "input_layernorm" + suffix + ".weight", {hidden});
  layout.add(layer + "post_attention_layernorm" + suffix + ".weight", {hidden});
  layout.linear(layer + "self_attn.q_proj" + suffix, c.q_width(), hidden);
  layout.linear(layer + "self_attn.k_proj" + suffix, c.kv_width(), hidden);
  layout.linear(layer + "self_attn.v_proj" + suffix, c.kv_width(), hidden);
  layout.add(layer + "self_attn.o_proj" + suffix + ".weight", {hidden, c.q_width()});
  layout.add(layer + "self_attn.q_norm" + suffix + ".weight", {c.head_dim});
  layout.add(layer + "self_attn.k_norm" + suffix + ".weight", {c.head_dim});
  layout.add(layer + "mlp" + suffix + ".gate_proj.weight", {inner, hidden});
  layout.add(layer + "mlp" + suffix + ".up_proj.weight", {inner, hidden});
  layout.add(layer + "mlp" + suffix + ".down_proj.weight", {hidden, inner});
}

void add_language_model(Layout& layout, const QwenConfig& c) {
  layout.add("language_model.model.embed_tokens.weight", {c.vocab_size, c.hidden_size});
  layout.add("language_model.lm_head.weight", {c.vocab_size, c.hidden_size});
  layout.add("language_model.model.norm.weight", {c.hidden_size});
  layout.add("language_model.model.norm_moe_gen.weight", {c.hidden_size});
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("language_model.model.layers.{}.", i);
    add_expert(layout, layer, c, "");
    add_expert(layout, layer, c, "_moe_gen");
  }
}

void add_vision_model(Layout& layout, const SiglipConfig& v) {
  const std::int64_t hidden = v.hidden_size, inner = v.intermediate_size;
  const std::int64_t grid = v.image_size / v.patch_size;
  const std::string root = "vit_model.vision_model.";
  layout.linear(root + "embeddings.patch_embedding", hidden,
                v.num_channels * v.patch_size * v.patch_size);
  layout.add(root + "embeddings.position_embedding.weight", {grid * grid, hidden});
  for (std::int64_t i = 0; i + 1 < v.num_hidden_layers; ++i) {
    const std::string layer = fmt::format("{}encoder.layers.{}.", root, i);
    layout.norm(layer + "layer_norm1", hidden);
    layout.norm(layer + "layer_norm2", hidden);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      layout.linear(layer + "self_attn." + name, hidden, hidden);
    }
    layout.linear(layer + "mlp.fc1", inner, hidden);
    layout.linear(layer + "mlp.fc2", hidden, inner);
  }
  layout.norm(root + "post_layernorm", hidden);
}

}  // namespace

std::vector<TensorShape> bagel_layout(const BagelConfig& config) {
  const std::int64_t hidden = config.llm.hidden_size, width = config.row_width();
  Layout layout;
  add_language_model(layout, config.llm);
  layout.linear("time_embedder.mlp.0", hidden, 256);
  layout.linear("time_embedder.mlp.2", hidden, hidden);
  layout.linear("vae2llm", hidden, width);
  layout.linear("llm2vae", width, hidden);
  layout.add("latent_pos_embed.pos_embed", {config.latent_side * config.latent_side, hidden});
  add_vision_model(layout, config.vit);
  layout.linear("connector.fc1", hidden, config.vit.hidden_size);
  layout.linear("connector.fc2", hidden, hidden);
  const std::int64_t side = config.vit_max_num_patch_per_side;
  layout.add("vit_pos_embed.pos_embed", {side * side, hidden});
  return layout.take();
}

}  // namespace diptych

#include "lib/models/qwen_mot/layout.h"

#include <fmt/format.h>

#include "lib/models/bagel/bagel.h"

namespace diptych {
namespace {

void add_vision_model(MotLayout& layout, const SiglipConfig& v) {
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
  const std::int64_t hidden = config.llm.hidden_size;
  MotLayout layout;
  layout.backbone(config.llm, config.row_width());
  layout.add("latent_pos_embed.pos_embed", {config.latent_side * config.latent_side, hidden});
  add_vision_model(layout, config.vit);
  layout.linear("connector.fc1", hidden, config.vit.hidden_size);
  layout.linear("connector.fc2", hidden, hidden);
  const std::int64_t side = config.vit_max_num_patch_per_side;
  layout.add("vit_pos_embed.pos_embed", {side * side, hidden});
  return layout.take();
}

}  // namespace diptych

#include "lib/models/lance/lance.h"

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/qwen_mot/layout.h"

namespace diptych {

LanceConfig LanceConfig::load(const std::filesystem::path& llm, const std::filesystem::path& vit) {
  // The official loader has both norms and no tied embeddings, whatever the file says.
  constexpr QwenParts kParts = {.attention_bias = true, .qk_norm = true, .mrope = true};
  LanceConfig c;
  c.llm = QwenConfig::load(llm / "llm_config.json", kParts);
  c.vit = QwenVisionConfig::load(vit / "config.json");
  if (c.vit.out_hidden_size != c.llm.hidden_size) {
    throw InputError("{}: out_hidden_size: found {}, expected the language model's hidden_size {}",
                     (vit / "config.json").string(), c.vit.out_hidden_size, c.llm.hidden_size);
  }
  return c;
}

std::vector<TensorShape> qwen_vision_layout(const QwenVisionConfig& c) {
  MotLayout layout;
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  layout.add("patch_embed.proj.weight",
             {hidden, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size});
  for (std::int64_t i = 0; i < c.depth; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    layout.add(block + "norm1.weight", {hidden});
    layout.add(block + "norm2.weight", {hidden});
    layout.linear(block + "attn.qkv", 3 * hidden, hidden);
    layout.linear(block + "attn.proj", hidden, hidden);
    layout.linear(block + "mlp.gate_proj", inner, hidden);
    layout.linear(block + "mlp.up_proj", inner, hidden);
    layout.linear(block + "mlp.down_proj", hidden, inner);
  }
  const std::int64_t merged = c.merged_patches() * hidden;
  layout.add("merger.ln_q.weight", {hidden});
  layout.linear("merger.mlp.0", merged, merged);
  layout.linear("merger.mlp.2", c.out_hidden_size, merged);
  return layout.take();
}

std::vector<TensorShape> lance_layout(const LanceConfig& config) {
  MotLayout layout;
  layout.backbone(config.llm, config.row_width);
  for (const TensorShape& tensor : qwen_vision_layout(config.vit))
    layout.add("vit_model." + tensor.name, tensor.shape);
  return layout.take();
}

}  // namespace diptych

#include "lib/models/lance/lance.h"

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

std::vector<TensorShape> lance_layout(const LanceConfig& config) {
  MotLayout layout;
  layout.language_model(config.llm);
  layout.latents(config.llm.hidden_size, config.row_width);
  for (const TensorShape& tensor : qwen_vision_layout(config.vit))
    layout.add("vit_model." + tensor.name, tensor.shape);
  return layout.take();
}

}  // namespace diptych

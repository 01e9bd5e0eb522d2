#include "lib/models/qwen_mot/backbone.h"

namespace diptych {

MotBackbone MotBackbone::load(const Weights& weights, const QwenConfig& config,
                              const std::optional<MotOffload>& offload,
                              const MatrixQuantization& quantization) {
  MotBackbone b;
  b.config = config;
  const Weights model = weights.scope("model");
  b.embed_tokens = model.get("embed_tokens.weight", {config.vocab_size, config.hidden_size});
  b.norm = model.get("norm.weight", {config.hidden_size});
  b.norm_gen = model.get("norm_moe_gen.weight", {config.hidden_size});
  b.layers = MotLayers::load(model, config, offload, quantization);
  b.quantization = quantization.kind;
  return b;
}

void MotBackbone::load_head(const Weights& weights) {
  lm_head = weights.get("lm_head.weight", {config.vocab_size, config.hidden_size});
}

}  // namespace diptych

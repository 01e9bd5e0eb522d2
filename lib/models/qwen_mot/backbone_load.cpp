#include <array>

#include "lib/models/qwen_mot/backbone.h"

namespace diptych {
namespace {

constexpr const char* kTokens = "embed_tokens.weight";

}  // namespace

MotBackbone MotBackbone::load(const Weights& weights, const QwenConfig& config,
                              const std::optional<MotOffload>& offload,
                              const MatrixQuantization& quantization) {
  MotBackbone b;
  b.config = config;
  const Weights model = weights.scope("model");
  const std::array<std::int64_t, 2> table = {config.vocab_size, config.hidden_size};
  const bool stays_in_file = !model.is_dummy() && !model.is_computed(kTokens);
  b.embed_tokens = stays_in_file
                       ? model.on(at::kCPU).as(model.stored_dtype(kTokens)).get(kTokens, table)
                       : model.get(kTokens, table);
  b.norm = model.get("norm.weight", {config.hidden_size});
  b.norm_gen = model.get("norm_moe_gen.weight", {config.hidden_size});
  b.layers = MotLayers::load(model, config, offload, quantization);
  b.quantization = quantization.kind;
  return b;
}

void MotBackbone::load_head(const Weights& weights) {
  const std::array<std::int64_t, 2> table = {config.vocab_size, config.hidden_size};
  lm_head = weights.get("lm_head.weight", table);
  if (embed_tokens.options().device() != norm.device())
    embed_tokens = weights.scope("model").get(kTokens, table);
}

}  // namespace diptych

#include <array>
#include <utility>

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
  b.embed_tokens = tokens_stay_in_file(weights)
                       ? model.on(at::kCPU).as(model.stored_dtype(kTokens)).get(kTokens, table)
                       : model.get(kTokens, table);
  b.norm = model.get("norm.weight", {config.hidden_size});
  b.norm_gen = model.get("norm_moe_gen.weight", {config.hidden_size});
  b.layers = MotLayers::load(model, config, offload, quantization);
  b.quantization = quantization.kind;
  return b;
}

bool MotBackbone::tokens_stay_in_file(const Weights& weights) {
  const Weights model = weights.scope("model");
  return !model.is_dummy() && !model.is_computed(kTokens);
}

MotTextWeights MotBackbone::load_head(const Weights& weights) const {
  const std::array<std::int64_t, 2> table = {config.vocab_size, config.hidden_size};
  MotTextWeights head;
  head.lm_head = weights.get("lm_head.weight", table);
  const bool is_there = embed_tokens.device() == norm.device();
  head.embed_tokens = is_there ? embed_tokens : weights.scope("model").get(kTokens, table);
  return head;
}

void MotBackbone::take(MotTextWeights head) {
  lm_head = std::move(head.lm_head);
  embed_tokens = std::move(head.embed_tokens);
}

}  // namespace diptych

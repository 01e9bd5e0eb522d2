#include "lib/models/qwen3/qwen3.h"

#include "lib/base/error.h"
#include "lib/base/json_file.h"

namespace diptych {

Qwen3Config Qwen3Config::load(const std::filesystem::path& path) {
  Qwen3Config config;
  static_cast<QwenConfig&>(config) =
      QwenConfig::load(path, {.attention_bias = false, .qk_norm = true});
  const nlohmann::json json = read_json_object(path);
  const auto tied = json.find("tie_word_embeddings");
  if (tied == json.end() || tied->is_null()) return config;
  if (!tied->is_boolean()) {
    throw InputError("{}: tie_word_embeddings: found {}, expected true or false", path.string(),
                     shown_json(*tied));
  }
  config.tie_word_embeddings = tied->get<bool>();
  return config;
}

Qwen3 Qwen3::load(const Weights& weights, const Qwen3Config& config,
                  const MatrixQuantization& quantization) {
  constexpr const char* kHead = "lm_head.weight";
  const Weights model = weights.scope("model");
  Qwen3 q;
  q.config = config;
  q.embed_tokens = model.get("embed_tokens.weight", {config.vocab_size, config.hidden_size});
  q.decoder = QwenDecoder::load(model, config, quantization);
  if (!config.tie_word_embeddings) {
    q.lm_head = weights.get(kHead, {config.vocab_size, config.hidden_size});
  } else {
    q.lm_head = q.embed_tokens;
    // Some files hold a copy of tied weights.
    if (!weights.is_dummy() && weights.contains(kHead))
      weights.check(kHead, {config.vocab_size, config.hidden_size});
  }
  if (!weights.is_dummy()) weights.require_all_read();
  return q;
}

Tensor Qwen3::embed(const Tensor& ids) const {
  return at::index(embed_tokens, {ids.clamp_min(0)});
}

Tensor Qwen3::logits(const Tensor& hidden, const Kernels& kernels) const {
  return linear(hidden, lm_head, {}, kernels);
}

}  // namespace diptych

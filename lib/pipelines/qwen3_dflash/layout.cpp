#include "lib/pipelines/qwen3_dflash/layout.h"

#include "lib/base/error.h"
#include "lib/text/byte_level_bpe.h"

namespace diptych {
namespace {

void check_layer(const Weights& layer, const QwenConfig& c) {
  const std::int64_t hidden = c.hidden_size;
  layer.check("input_layernorm.weight", {hidden});
  layer.check("post_attention_layernorm.weight", {hidden});
  const Weights attention = layer.scope("self_attn");
  attention.check("q_proj.weight", {c.q_width(), hidden});
  attention.check("k_proj.weight", {c.kv_width(), hidden});
  attention.check("v_proj.weight", {c.kv_width(), hidden});
  attention.check("o_proj.weight", {hidden, c.q_width()});
  attention.check("q_norm.weight", {c.head_dim});
  attention.check("k_norm.weight", {c.head_dim});
  const Weights mlp = layer.scope("mlp");
  mlp.check("gate_proj.weight", {c.intermediate_size, hidden});
  mlp.check("up_proj.weight", {c.intermediate_size, hidden});
  mlp.check("down_proj.weight", {hidden, c.intermediate_size});
}

}  // namespace

void check_qwen3_tensors(const Weights& weights, const Qwen3Config& c) {
  const Weights model = weights.scope("model");
  model.check("embed_tokens.weight", {c.vocab_size, c.hidden_size});
  model.check("norm.weight", {c.hidden_size});
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    check_layer(model.scope("layers").scope(std::to_string(i)), c);
  // Some tied checkpoints hold the shared matrix twice.
  if (!c.tie_word_embeddings || weights.contains("lm_head.weight"))
    weights.check("lm_head.weight", {c.vocab_size, c.hidden_size});
  weights.require_all_read();
}

std::vector<std::string> check_qwen3_layout(const std::filesystem::path& folder) {
  std::vector<std::string> problems;
  const auto check = [&](const auto& work) {
    try {
      work();
    } catch (const InputError& error) {
      problems.emplace_back(error.what());
    }
  };
  check([&] {
    const Qwen3Config config = Qwen3Config::load(folder / "config.json");
    check_qwen3_tensors(Weights::open(folder, at::kCPU, at::kFloat), config);
  });
  check([&] { load_byte_level_bpe(folder); });
  return problems;
}

}  // namespace diptych

#include "lib/models/bagel/bagel.h"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/error.h"

namespace diptych {

std::int64_t Bagel::read_latent_side(const Weights& weights, std::int64_t fallback) {
  if (weights.is_dummy()) return fallback;
  const char* name = "latent_pos_embed.pos_embed";
  const auto shape = weights.shape(name);
  const std::int64_t rows = shape.empty() ? 0 : shape.front();
  const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(rows))));
  if (side < 1 || side * side != rows) {
    throw InputError("{}: has {} rows, expected a square number", name, rows);
  }
  return side;
}

BagelConfig Bagel::checked(const Weights& weights, BagelConfig config) {
  if (weights.is_dummy()) return config;
  config.latent_side = read_latent_side(weights, config.latent_side);
  for (const auto& [name, shape] : bagel_layout(config)) weights.check(name, shape);
  weights.require_all_read();
  return config;
}

Bagel Bagel::load(const Weights& weights, const BagelConfig& config,
                  const std::optional<MotOffload>& offload,
                  const MatrixQuantization& quantization) {
  Bagel m;
  m.config = config;
  m.language_model =
      MotBackbone::load(weights.scope("language_model"), config.llm, offload, quantization);
  m.latents =
      MotLatents::load(weights, config.llm.hidden_size, config.row_width(), config.latent_side);
  return m;
}

BagelVision BagelVision::load(const Weights& weights, const BagelConfig& config) {
  const std::int64_t hidden = config.llm.hidden_size, side = config.vit_max_num_patch_per_side;
  const Weights connector = weights.scope("connector");
  BagelVision v;
  v.siglip = Siglip::load(weights.scope("vit_model.vision_model"), config.vit);
  v.fc1 = connector.get("fc1.weight", {hidden, config.vit.hidden_size});
  v.fc1_bias = connector.get("fc1.bias", {hidden});
  v.fc2 = connector.get("fc2.weight", {hidden, hidden});
  v.fc2_bias = connector.get("fc2.bias", {hidden});
  v.pos_embed = weights.get("vit_pos_embed.pos_embed", {side * side, hidden});
  return v;
}

Tensor BagelVision::connect(const Tensor& features) const {
  return at::linear(at::gelu(at::linear(features, fc1, fc1_bias), "tanh"), fc2, fc2_bias);
}

}  // namespace diptych

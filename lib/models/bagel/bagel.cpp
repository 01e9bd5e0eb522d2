#include "lib/models/bagel/bagel.h"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/ops/ops.h"

namespace diptych {
namespace {

constexpr std::int64_t kFrequencyWidth = 256;

}  // namespace

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

void Bagel::check_layout(const Weights& weights, const BagelConfig& config) {
  if (weights.is_dummy()) return;
  for (const auto& [name, shape] : bagel_layout(config)) weights.check(name, shape);
  weights.require_all_read();
}

Bagel Bagel::load(const Weights& weights, BagelConfig config,
                  const std::optional<MotOffload>& offload, const QwenQuantization& quantization) {
  config.latent_side = read_latent_side(weights, config.latent_side);
  const std::int64_t hidden = config.llm.hidden_size, width = config.row_width();
  check_layout(weights, config);  // all of it, before a byte moves
  Bagel m;
  m.config = config;
  m.language_model =
      MotBackbone::load(weights.scope("language_model"), config.llm, offload, quantization);
  const Weights time = weights.scope("time_embedder.mlp");
  m.time_mlp_0 = time.get("0.weight", {hidden, kFrequencyWidth});
  m.time_mlp_0_bias = time.get("0.bias", {hidden});
  m.time_mlp_2 = time.get("2.weight", {hidden, hidden});
  m.time_mlp_2_bias = time.get("2.bias", {hidden});
  m.vae2llm = weights.get("vae2llm.weight", {hidden, width});
  m.vae2llm_bias = weights.get("vae2llm.bias", {hidden});
  m.llm2vae = weights.get("llm2vae.weight", {width, hidden});
  m.llm2vae_bias = weights.get("llm2vae.bias", {width});
  const std::int64_t side = config.latent_side;
  m.latent_pos_embed = weights.get("latent_pos_embed.pos_embed", {side * side, hidden});
  return m;
}

Tensor Bagel::embed_timesteps(std::span<const float> t) const {
  std::vector<Tensor> rows;
  for (const float value : t) rows.push_back(timestep_embedding(value, kFrequencyWidth));
  const Tensor frequencies = at::stack(rows).to(time_mlp_0.options());  // [steps, 256]
  const Tensor hidden = at::silu(at::linear(frequencies, time_mlp_0, time_mlp_0_bias));
  return at::linear(hidden, time_mlp_2, time_mlp_2_bias);
}

Tensor Bagel::latent_position_ids(std::int64_t h, std::int64_t w) const {
  const Tensor row = at::arange(h, at::kLong).unsqueeze(1) * config.latent_side;  // [h, 1]
  return (row + at::arange(w, at::kLong)).flatten();
}

Tensor Bagel::embed_latents(const Tensor& x, const Tensor& time, const Tensor& position) const {
  // Left to right, each sum rounded to the model's dtype, as the official code adds them.
  return at::linear(x.to(vae2llm.scalar_type()), vae2llm, vae2llm_bias).add_(time).add_(position);
}

Tensor Bagel::velocity(const Tensor& hidden) const {
  return at::linear(hidden, llm2vae, llm2vae_bias);
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

Tensor pack_latent(const Tensor& latent, std::int64_t patch) {
  const std::int64_t channels = latent.size(1), h = latent.size(2) / patch,
                     w = latent.size(3) / patch;
  const Tensor grid = latent.reshape({channels, h, patch, w, patch});
  return grid.permute({1, 3, 2, 4, 0}).reshape({h * w, patch * patch * channels});
}

Tensor unpack_latent(const Tensor& rows, std::int64_t h, std::int64_t w, std::int64_t patch,
                     std::int64_t channels) {
  const Tensor grid = rows.reshape({h, w, patch, patch, channels});
  return grid.permute({4, 0, 2, 1, 3}).reshape({1, channels, h * patch, w * patch});
}

}  // namespace diptych

#include "lib/models/qwen_mot/latents.h"

#include <vector>

#include "lib/ops/ops.h"

namespace diptych {
namespace {

constexpr std::int64_t kFrequencyWidth = 256;

// One coordinate of every row -> [rows, width], float64.
Tensor sines_and_cosines(const Tensor& coordinate, std::int64_t width) {
  const Tensor exponent = at::arange(width / 2, at::kDouble) / (static_cast<double>(width) / 2);
  const Tensor omega = at::pow(10000.0, exponent).reciprocal();
  const Tensor angles = coordinate.to(at::kDouble).unsqueeze(1) * omega;
  return at::cat({angles.sin(), angles.cos()}, 1);
}

}  // namespace

MotLatents MotLatents::load(const Weights& weights, std::int64_t hidden, std::int64_t width,
                            std::int64_t side, Table table) {
  MotLatents l;
  l.side = side;
  l.width = width;
  const Weights time = weights.scope("time_embedder.mlp");
  l.time_mlp_0 = time.get("0.weight", {hidden, kFrequencyWidth});
  l.time_mlp_0_bias = time.get("0.bias", {hidden});
  l.time_mlp_2 = time.get("2.weight", {hidden, hidden});
  l.time_mlp_2_bias = time.get("2.bias", {hidden});
  l.vae2llm = weights.get("vae2llm.weight", {hidden, width});
  l.vae2llm_bias = weights.get("vae2llm.bias", {hidden});
  l.llm2vae = weights.get("llm2vae.weight", {width, hidden});
  l.llm2vae_bias = weights.get("llm2vae.bias", {width});
  if (table == Table::stored)
    l.pos_embed = weights.get("latent_pos_embed.pos_embed", {side * side, hidden});
  return l;
}

Tensor MotLatents::embed_timesteps(std::span<const float> t) const {
  std::vector<Tensor> rows;
  for (const float value : t) rows.push_back(timestep_embedding(value, kFrequencyWidth));
  const Tensor frequencies = at::stack(rows).to(time_mlp_0.options());  // [steps, 256]
  const Tensor hidden = at::silu(at::linear(frequencies, time_mlp_0, time_mlp_0_bias));
  return at::linear(hidden, time_mlp_2, time_mlp_2_bias);
}

Tensor MotLatents::position_ids(std::int64_t h, std::int64_t w, std::int64_t t) const {
  const Tensor row = at::arange(h, at::kLong).unsqueeze(1) * side;          // [h, 1]
  const Tensor frame = at::arange(t, at::kLong).view({t, 1, 1}) * side * side;
  return (frame + row + at::arange(w, at::kLong)).flatten();
}

Tensor MotLatents::positions(std::int64_t h, std::int64_t w, std::int64_t t) const {
  const Tensor ids = position_ids(h, w, t);
  if (pos_embed.defined()) return pos_embed.index_select(0, ids.to(pos_embed.device()));
  return fixed_latent_positions(ids, side, vae2llm.size(0)).to(vae2llm.options());
}

Tensor MotLatents::project(const Tensor& x) const {
  return at::linear(x.to(vae2llm.scalar_type()), vae2llm, vae2llm_bias);
}

Tensor MotLatents::embed(const Tensor& x, const Tensor& time, const Tensor& position) const {
  // Left to right, each sum rounded to the model's dtype, as the official code adds them.
  return project(x).add_(time).add_(position);
}

Tensor fixed_latent_positions(const Tensor& ids, std::int64_t side, std::int64_t width) {
  const std::int64_t third = width / 3 / 2 * 2, frame = side * side;
  const Tensor t = ids.floor_divide(frame), h = ids.remainder(frame).floor_divide(side),
               w = ids.remainder(side);
  return at::cat({sines_and_cosines(t, third), sines_and_cosines(h, third),
                  sines_and_cosines(w, width - 2 * third)},
                 1)
      .to(at::kFloat);
}

Tensor MotLatents::velocity(const Tensor& hidden) const {
  return at::linear(hidden, llm2vae, llm2vae_bias);
}

}  // namespace diptych

#include "lib/models/qwen_mot/latents.h"

#include <vector>

#include "lib/ops/ops.h"

namespace diptych {
namespace {

constexpr std::int64_t kFrequencyWidth = 256;

}  // namespace

MotLatents MotLatents::load(const Weights& weights, std::int64_t hidden, std::int64_t width,
                            std::int64_t side) {
  MotLatents l = load(weights, hidden, width, LatentTable{.frames = 1, .side = side});
  l.pos_embed = weights.get("latent_pos_embed.pos_embed", {side * side, hidden});
  return l;
}

MotLatents MotLatents::load(const Weights& weights, std::int64_t hidden, std::int64_t width,
                            const LatentTable& table) {
  MotLatents l;
  l.side = table.side;
  l.frames = table.frames;
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
  return LatentTable{frames, side}.indices(t, h, w);
}

Tensor MotLatents::positions(std::int64_t h, std::int64_t w, std::int64_t t) const {
  if (pos_embed.defined())
    return pos_embed.index_select(0, position_ids(h, w, t).to(pos_embed.device()));
  return LatentTable{frames, side}.rows(t, h, w, vae2llm.size(0)).to(vae2llm.options());
}

Tensor MotLatents::project(const Tensor& x) const {
  return at::linear(x.to(vae2llm.scalar_type()), vae2llm, vae2llm_bias);
}

Tensor MotLatents::embed(const Tensor& x, const Tensor& time, const Tensor& position) const {
  // Left to right, each sum rounded to the model's dtype, as the official code adds them.
  return project(x).add_(time).add_(position);
}

Tensor MotLatents::velocity(const Tensor& hidden) const {
  return at::linear(hidden, llm2vae, llm2vae_bias);
}

}  // namespace diptych

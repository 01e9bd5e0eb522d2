#include "lib/models/qwen_mot/latents.h"

namespace diptych {

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
  l.time_embedder = TimeEmbedder::load(weights.scope("time_embedder"), hidden);
  l.vae2llm = weights.get("vae2llm.weight", {hidden, width});
  l.vae2llm_bias = weights.get("vae2llm.bias", {hidden});
  l.llm2vae = weights.get("llm2vae.weight", {width, hidden});
  l.llm2vae_bias = weights.get("llm2vae.bias", {width});
  return l;
}

Tensor MotLatents::position_ids(std::int64_t h, std::int64_t w, std::int64_t t) const {
  return LatentTable{frames, side}.indices(t, h, w);
}

Tensor MotLatents::positions(std::int64_t h, std::int64_t w, std::int64_t t) const {
  if (pos_embed.defined())
    return pos_embed.index_select(0, position_ids(h, w, t).to(pos_embed.device()));
  return LatentTable{frames, side}.rows(t, h, w, vae2llm.size(0)).to(vae2llm.options());
}

}  // namespace diptych

// The weights of a checkpoint that is open, and their hash.
#include <fmt/format.h>

#include "lib/media/image_transform.h"
#include "lib/pipelines/bagel/checkpoint.h"

namespace diptych {

void BagelCheckpoint::drop_weights() {
  model.language_model.layers = {};
}

void BagelCheckpoint::place_weights(const std::optional<MotOffload>& offload) {
  if (!offload) reserve_layers(model.config.llm, quantization.kind);
  model = Bagel::load(model_weights, model.config, offload, quantization);
  vae = FluxVae::load(vae_weights, vae.config, vae.compute);
}

void BagelCheckpoint::load_vision() {
  if (model.vision) return;
  Weights::ReadAhead reading(model_weights);
  model.vision = BagelVision::load(model_weights, model.config);
  reading.finish();
}

void BagelCheckpoint::load_head() {
  MotBackbone& backbone = model.language_model;
  if (backbone.lm_head.defined()) return;
  Weights::ReadAhead reading(model_weights);
  MotTextWeights head = backbone.load_head(model_weights.scope("language_model"));
  reading.finish();
  backbone.take(std::move(head));
}

std::string BagelCheckpoint::weights_hash(const std::stop_token& stop) const {
  return fmt::format("{:.16}-{:.16}", model_weights.hash(stop), vae_weights.hash(stop));
}

void BagelCheckpoint::rehearse_decoding(const LatentSize& size, bool with_strips) const {
  const auto options = at::TensorOptions(at::kFloat).device(vae_weights.options().device());
  const std::int64_t patch = model.config.latent_patch_size;
  const Tensor zeros =
      at::zeros({1, model.config.latent_channels, size.h * patch, size.w * patch}, options);
  to_uint8(
      vae.decode(zeros, {}, with_strips ? std::optional<VaeStrips>(std::in_place) : std::nullopt));
}

}  // namespace diptych

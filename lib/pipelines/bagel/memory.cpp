#include "lib/pipelines/bagel/memory.h"

#include "lib/models/flux_vae/memory.h"
#include "lib/pipelines/bagel/checkpoint.h"

namespace diptych {

MotSizes bagel_sizes(const BagelConfig& model, const FluxVaeConfig& vae) {
  MotSizes sizes;
  sizes.llm = model.llm;
  sizes.layout = bagel_layout(model);
  sizes.row_width = model.row_width();
  sizes.pixels_per_row = model.pixels_per_row();
  // Patches, a layer of the vision model, the connector.
  sizes.look_bytes = [vit = model.vit, hidden = model.llm.hidden_size](std::int64_t patches,
                                                                       std::int64_t element) {
    constexpr std::int64_t kFloat = 4;
    const std::int64_t patch = vit.num_channels * vit.patch_size * vit.patch_size;
    return patches * (2 * patch * kFloat +
                      (6 * vit.hidden_size + 2 * vit.intermediate_size + 2 * hidden) * element);
  };
  const auto strips_of = [](bool strips) {
    return strips ? std::optional<VaeStrips>(std::in_place) : std::nullopt;
  };
  sizes.vae.weights = vae_weight_bytes(vae);
  sizes.vae.encode = [=](const FrameSize& size, bool strips) {
    return vae_encode_bytes(vae, size.width, size.height, strips_of(strips));
  };
  sizes.vae.decode = [=](const FrameSize& size, bool strips) {
    return vae_decode_bytes(vae, size.width, size.height, strips_of(strips));
  };
  return sizes;
}

MotSizes BagelCheckpoint::sizes() const {
  MotSizes sizes = bagel_sizes(model.config, vae.config);
  sizes.tokens_in_file = MotBackbone::tokens_stay_in_file(model_weights.scope("language_model"));
  return sizes;
}

}  // namespace diptych

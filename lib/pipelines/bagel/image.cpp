#include "lib/pipelines/bagel/image.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/models/bagel/latent_rows.h"
#include "lib/models/siglip/siglip.h"
#include "lib/tensor/noise.h"

namespace diptych {
namespace {

// A limit of the official application for the released table, for a table of `side` steps.
std::int64_t scaled(std::int64_t official, std::int64_t released_side, std::int64_t side,
                    std::int64_t stride) {
  if (side >= released_side) return official;
  return std::max(stride, official * side / released_side / stride * stride);
}

}  // namespace

ImageTransforms ImageTransforms::of(const BagelConfig& config) {
  constexpr std::int64_t kLatentSide = 64, kPatchSide = 70;  // of the released position tables
  const std::int64_t step = config.pixels_per_row(), patch = config.vit.patch_size;
  const auto vae = [&](std::int64_t official) {
    return scaled(official, kLatentSide, config.latent_side, step);
  };
  const auto vit = [&](std::int64_t official) {
    return scaled(official, kPatchSide, config.vit_max_num_patch_per_side, patch);
  };
  ImageTransforms transforms;
  transforms.vae = {vae(1024), vae(512), step};
  transforms.vit = {vit(980), vit(224), patch};
  return transforms;
}

BagelImage BagelImage::sized(ImageSize size, const ImageTransforms& transforms,
                             const BagelConfig& config) {
  const std::int64_t step = config.pixels_per_row(), patch = config.vit.patch_size;
  const auto resized = transforms.vae.size(size.height, size.width);
  const auto latent = transforms.vae.size(resized.first, resized.second);
  const auto seen = transforms.vit.size(resized.first, resized.second);
  BagelImage image;
  image.latent = {latent.first / step, latent.second / step};
  image.patches = {seen.first / patch, seen.second / patch};
  return image;
}

BagelImage BagelImage::prepare(const Tensor& image, const ImageTransforms& transforms,
                               const BagelConfig& config) {
  // The official code resizes twice for the autoencoder; the second time changes nothing.
  const Tensor resized = transforms.vae.resize(image);
  const Tensor seen = transforms.vit.resize(resized);
  BagelImage prepared;
  prepared.vae_pixels = to_model_input(transforms.vae.resize(resized));
  prepared.vit_pixels = to_model_input(seen);
  const std::int64_t step = config.pixels_per_row(), patch = config.vit.patch_size;
  prepared.latent = {prepared.vae_pixels.size(2) / step, prepared.vae_pixels.size(3) / step};
  prepared.patches = {seen.size(0) / patch, seen.size(1) / patch};
  return prepared;
}

Tensor encode_latent(BagelImage& image, const BagelCheckpoint& checkpoint, at::Generator& generator,
                     const Runtime& runtime, const ImageTrace& trace) {
  if (image.latent_rows.defined()) return image.latent_rows;
  if (!image.moments.defined())
    image.moments = checkpoint.vae.encode_moments(image.vae_pixels.to(runtime.device), {},
                                                  checkpoint.vae_strips());
  const BagelConfig& config = checkpoint.model.config;
  const Tensor& moments = image.moments;
  const Tensor noise =
      randn({1, config.latent_channels, moments.size(2), moments.size(3)}, generator);
  const Tensor latent = checkpoint.vae.latent_from_moments(moments, noise.to(runtime.device));
  if (trace.sink != nullptr) {
    trace.sink->record(trace.name + ".vae.image", image.vae_pixels);
    trace.sink->record(trace.name + ".vae.moments", moments);
    trace.sink->record(trace.name + ".vae.noise", noise);
    trace.sink->record(trace.name + ".vae.latent", latent);
  }
  image.latent_rows = pack_latent(latent, config.latent_patch_size);
  return image.latent_rows;
}

Tensor encode_patches(BagelImage& image, const BagelCheckpoint& checkpoint, const Runtime& runtime,
                      const ImageTrace& trace) {
  if (image.vit_rows.defined()) return image.vit_rows;
  const BagelConfig& config = checkpoint.model.config;
  const BagelVision& vision = *checkpoint.model.vision;
  const Tensor patches =
      patchify(image.vit_pixels, config.vit.patch_size).to(runtime.device, runtime.dtype);
  const Tensor ids = siglip_position_ids(image.patches.h, image.patches.w, config.vit);
  SiglipObserver observer;
  if (trace.sink != nullptr) {
    trace.sink->record(trace.name + ".packed_vit_tokens", patches);
    trace.sink->record(trace.name + ".packed_vit_position_ids", ids);
    observer = [&](std::string_view what, const Tensor& value) {
      trace.sink->record(fmt::format("{}.{}", trace.name, what), value);
    };
  }
  const Tensor positions = ids.to(runtime.device);
  const Tensor seen = vision.siglip.forward(
      patches, positions, runtime.read_attention.of(AttentionRole::self), observer);
  const Tensor connected = vision.connect(seen);
  if (trace.sink != nullptr) trace.sink->record(trace.name + ".vit.connector", connected);
  image.vit_rows = connected + vision.pos_embed.index_select(0, positions);
  return image.vit_rows;
}

}  // namespace diptych

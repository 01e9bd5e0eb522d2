#include "lib/models/wan_vae/wan_vae.h"

#include <fmt/format.h>

#include "lib/base/interrupt.h"

namespace diptych {
namespace {

// What steps of a pass have in common. Calls are not nested where that would keep what an inner one
// was given to the end of the whole expression.
struct ChunkPass {
  at::ScalarType maps;
  KernelPolicy kernels;
  const WanVaeObserver& observer;
  WanVaeHistory& history;
  std::int64_t chunk = 0;

  // A step's result is reported and handed on.
  Tensor report(const std::string& name, Tensor value) const {
    if (observer) observer(chunk, name, value.permute({3, 0, 1, 2}));
    return value;
  }
  WanVaeSum report(const std::string& name, WanVaeSum value) const {
    if (!observer) return value;
    return whole(report(name, total(std::move(value))));
  }
  Tensor total(WanVaeSum value) const { return wan_vae_total(std::move(value), maps, kernels); }
  static WanVaeSum whole(Tensor map) { return {std::move(map), {}, /*owned=*/true}; }

  WanVaeSum run(const std::vector<WanVaeResidualBlock>& blocks, WanVaeSum h) const {
    for (const WanVaeResidualBlock& block : blocks) h = block.forward(std::move(h), history);
    return h;
  }
  Tensor downsample(const WanVaeDownsample& down, WanVaeSum h) const {
    Tensor x = wan_vae_total(std::move(h), down.input_dtype(), kernels);
    return down.forward(std::move(x), maps, history);
  }
  Tensor upsample(const WanVaeUpsample& up, WanVaeSum h, const Tensor& shortcut) const {
    Tensor x = wan_vae_total(std::move(h), up.input_dtype(), kernels);
    return up.forward(std::move(x), maps, shortcut, history);
  }
};

ChunkPass pass_of(const WanVae& vae, const WanVaeObserver& observer, WanVaeHistory& history,
                  std::int64_t chunk) {
  return {vae.mean.scalar_type(), vae.decoder.head.norm.kernels, observer, history, chunk};
}

WanVaeSum run_middle(const ChunkPass& pass, const WanVaeMiddle& middle, WanVaeSum h,
                     const std::string& scope) {
  h = pass.report(scope + ".middle0", middle.block_0.forward(std::move(h), pass.history));
  Tensor map = pass.total(std::move(h));
  map = middle.attention.forward(map);
  h = ChunkPass::whole(pass.report(scope + ".middle1", std::move(map)));
  return pass.report(scope + ".middle2", middle.block_2.forward(std::move(h), pass.history));
}

Tensor run_residual(const ChunkPass& pass, const WanVaeDownStage& stage, const Tensor& x) {
  WanVaeSum h = pass.run(stage.blocks, {x});
  if (!stage.downsample) return pass.total(std::move(h)).add_(x);
  return pass.downsample(*stage.downsample, std::move(h))
      .add_(wan_vae_average_down(x, stage.downsample->time_conv ? 2 : 1));
}

// `shortcut`: the stage's input, repeated, is added to what upsampling makes.
WanVaeSum run_stage(const ChunkPass& pass, const WanVaeUpStage& stage, Tensor x, bool shortcut) {
  shortcut = shortcut && stage.upsample;
  WanVaeSum h = shortcut ? WanVaeSum{x} : ChunkPass::whole(std::move(x));
  h = pass.run(stage.blocks, std::move(h));
  if (!stage.upsample) return h;
  return ChunkPass::whole(pass.upsample(*stage.upsample, std::move(h), shortcut ? x : Tensor()));
}

WanVaeSum run_stages(const ChunkPass& pass, const WanVae& vae, Tensor x) {
  int index = 0;
  const auto name_next = [&] { return fmt::format("encoder.down{}", index++); };
  WanVaeSum h = ChunkPass::whole(std::move(x));
  for (const WanVaeDownStage& stage : vae.encoder.downsamples) {
    if (vae.config.is_residual) {
      h = ChunkPass::whole(pass.report(name_next(), run_residual(pass, stage, h.map)));
      continue;
    }
    for (const WanVaeResidualBlock& block : stage.blocks)
      h = pass.report(name_next(), block.forward(std::move(h), pass.history));
    if (stage.downsample)
      h = ChunkPass::whole(
          pass.report(name_next(), pass.downsample(*stage.downsample, std::move(h))));
  }
  return h;
}

// [3, n, p * h, p * w] -> [n, h, w, 3 * p * p], channels (colour, column, row).
Tensor patchify(const Tensor& video, std::int64_t p) {
  const std::int64_t n = video.size(1), h = video.size(2) / p, w = video.size(3) / p;
  return video.reshape({WanVaeConfig::kColours, n, h, p, w, p})
      .permute({1, 2, 4, 0, 5, 3})
      .reshape({n, h, w, WanVaeConfig::kColours * p * p});
}

Tensor unpatchify(const Tensor& x, std::int64_t p) {
  const std::int64_t n = x.size(0), h = x.size(1), w = x.size(2);
  return x.view({n, h, w, WanVaeConfig::kColours, p, p})
      .permute({3, 0, 1, 5, 2, 4})
      .reshape({WanVaeConfig::kColours, n, p * h, p * w});
}

// One chunk of frames, patchified -> moments [1, h, w, 2 z].
Tensor encode_chunk(const WanVae& vae, Tensor x, const ChunkPass& pass) {
  const auto& encoder = vae.encoder;
  x = encoder.conv1.forward(x, pass.history);
  x = pass.report("encoder.conv1", x.to(pass.maps));
  WanVaeSum h = run_stages(pass, vae, std::move(x));
  h = run_middle(pass, encoder.middle, std::move(h), "encoder");
  h = wan_vae_norm_silu_conv(encoder.head.norm, encoder.head.conv, std::move(h), pass.history);
  return vae.conv1.forward(pass.report("encoder.out", pass.total(std::move(h))));
}

// One latent frame [1, h, w, z] -> its map where upsampling begins, [1, h, w, c].
Tensor begin_decoding(const WanVae& vae, const Tensor& latent, const ChunkPass& pass) {
  const auto& decoder = vae.decoder;
  Tensor x = vae.conv2.forward(latent / vae.inverse_std + vae.mean);
  x = decoder.conv1.forward(x, pass.history);
  x = pass.report("decoder.conv1", x.to(pass.maps));
  WanVaeSum h = ChunkPass::whole(std::move(x));
  h = run_middle(pass, decoder.middle, std::move(h), "decoder");
  return pass.total(std::move(h));
}

// That map or a band of it -> frames [n, H, W, c], patches where the config has them.
Tensor finish_decoding(const WanVae& vae, Tensor map, const ChunkPass& pass) {
  const auto& decoder = vae.decoder;
  WanVaeSum h = ChunkPass::whole(std::move(map));
  for (std::size_t s = 0; s < decoder.upsamples.size(); ++s) {
    map = pass.total(std::move(h));
    h = run_stage(pass, decoder.upsamples[s], std::move(map), vae.config.is_residual);
    h = pass.report(fmt::format("decoder.up{}", s), std::move(h));
  }
  h = wan_vae_norm_silu_conv(decoder.head.norm, decoder.head.conv, std::move(h), pass.history);
  return pass.report("decoder.out", pass.total(std::move(h)));
}

}  // namespace

Tensor WanVaeMoments::sample(const Tensor& eps) const {
  return mean + at::exp(0.5 * log_var.clamp(-30, 20)) * eps;
}

Tensor WanVaeMoments::latent(const Tensor& eps) const {
  const Tensor z = mu + at::exp(0.5 * log_var) * eps;
  return z.permute({1, 2, 3, 0}).contiguous();
}

namespace {

// A table [z] beside a latent [z, t, h, w], in its dtype.
Tensor beside(const std::vector<double>& values, const Tensor& latent) {
  return wan_vae_table(values, latent.options()).view({-1, 1, 1, 1});
}

}  // namespace

Tensor WanVae::normalise(const Tensor& latent) const {
  return (latent - beside(config.latents_mean, latent)) *
         beside(config.latents_std, latent).reciprocal();
}

Tensor WanVae::denormalise(const Tensor& latent) const {
  return latent / beside(config.latents_std, latent).reciprocal() +
         beside(config.latents_mean, latent);
}

namespace {

void check_video(const Tensor& video, std::int64_t side) {
  TORCH_CHECK(video.dim() == 4 && video.size(0) == WanVaeConfig::kColours && video.size(1) >= 1 &&
                  video.size(2) >= side && video.size(2) % side == 0 && video.size(3) >= side &&
                  video.size(3) % side == 0,
              "[wan_vae] video is ", video.sizes(), ", expected [3, T, H, W] with sides of ", side);
}

// video [3, T, H, W] -> moments [t, h, w, 2 z]. `before_chunk` is called before each chunk.
Tensor encode_video(const WanVae& vae, const Tensor& video, const WanVaeObserver& observer,
                    const std::function<void()>& before_chunk = {}) {
  WanVaeHistory history;
  std::vector<Tensor> moments;
  const std::int64_t chunks = WanVaeConfig::latent_frames(video.size(1));
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (before_chunk) before_chunk();
    history.begin_chunk(chunk + 1 == chunks);
    const std::int64_t first = chunk == 0 ? 0 : WanVaeConfig::frames(chunk);
    const std::int64_t count = chunk == 0 ? 1 : WanVaeConfig::kTemporal;
    Tensor frames = video.narrow(1, first, count).to(vae.mean.options());
    frames = patchify(frames, vae.config.patch_size);
    moments.push_back(encode_chunk(vae, std::move(frames), pass_of(vae, observer, history, chunk)));
  }
  return at::cat(moments);
}

WanVaeMoments split(const WanVae& vae, const Tensor& moments) {
  const std::int64_t z = vae.config.z_dim;
  const Tensor mean = moments.narrow(3, 0, z), log_var = moments.narrow(3, z, z);
  const auto first_channels = [](const Tensor& part) {  // [t, h, w, z] -> [z, t, h, w]
    return part.to(at::kFloat).permute({3, 0, 1, 2}).contiguous();
  };
  return {first_channels(mean), first_channels(log_var),
          first_channels((mean - vae.mean) * vae.inverse_std)};
}

}  // namespace

WanVaeMoments WanVae::encode(const Tensor& video, const WanVaeObserver& observer) const {
  check_video(video, config.spatial());
  return split(*this, encode_video(*this, video, observer));
}

WanVaeMoments WanVae::encode(const Tensor& video, const WanVaeTiling& tiling) const {
  const std::int64_t side = config.spatial();
  check_video(video, side);
  const std::int64_t h = video.size(2) / side, w = video.size(3) / side;
  if (!tiling.splits(config, h, w)) return encode(video);
  const auto encode_tile = [&](const WanVaeTile& tile) {
    const Tensor part =
        video.narrow(2, tile.y * side, tile.h * side).narrow(3, tile.x * side, tile.w * side);
    return encode_video(*this, part, {}, check_interrupted);
  };
  return split(*this, wan_vae_blend_tiles({h, w, side, side, tiling}, encode_tile));
}

WanVaeDecoder::WanVaeDecoder(const WanVae& vae, Tensor latent, WanVaeObserver observer)
    : vae_(vae), latent_(std::move(latent)), observer_(std::move(observer)) {
  TORCH_CHECK(latent_.dim() == 4 && latent_.numel() > 0 && latent_.size(3) == vae.config.z_dim,
              "[wan_vae] latent is ", latent_.sizes(), ", expected [t, h, w, ", vae.config.z_dim,
              "]");
}

WanVaeDecoder::WanVaeDecoder(const WanVae& vae, Tensor latent, const WanVaeTiling& tiling)
    : WanVaeDecoder(vae, std::move(latent)) {
  if (tiling.splits(vae.config, latent_.size(1), latent_.size(2))) tiling_ = tiling;
}

WanVaeDecoder::WanVaeDecoder(const WanVae& vae, Tensor latent, Ranks& ranks)
    : WanVaeDecoder(vae, std::move(latent)) {
  band_.emplace(ranks, latent_.size(1));
  band_history_ = WanVaeHistory(band_);
}

// What comes before upsampling, every rank does for all rows: its attention is over all of them,
// and it is a small part of the work.
Tensor WanVaeDecoder::next_map() {
  const bool last = chunk_ + 1 == latent_.size(0);
  history_.begin_chunk(last);
  band_history_.begin_chunk(last);
  const Tensor latent = latent_.narrow(0, chunk_, 1).to(vae_.mean.options());
  const std::int64_t chunk = chunk_++;
  Tensor map = begin_decoding(vae_, latent, pass_of(vae_, observer_, history_, chunk));
  if (band_) map = band_->cut(map);
  map = finish_decoding(vae_, std::move(map), pass_of(vae_, observer_, band_history_, chunk));
  return band_ ? band_->join(map) : map;
}

Tensor WanVaeDecoder::decode_tiles() const {
  const WanVaeConfig& config = vae_.config;
  const WanVaeTiles tiles{latent_.size(1), latent_.size(2), config.patch_size, config.spatial(),
                          *tiling_};
  return wan_vae_blend_tiles(tiles, [&](const WanVaeTile& tile) {
    const Tensor part = latent_.narrow(1, tile.y, tile.h).narrow(2, tile.x, tile.w);
    WanVaeDecoder decoder(vae_, part);
    std::vector<Tensor> frames;
    while (decoder.has_next()) {
      check_interrupted();
      frames.push_back(decoder.next_map().to(at::kCPU, at::kFloat));
    }
    return at::cat(frames);
  });
}

Tensor WanVaeDecoder::next_tiled() {
  if (!tiled_.defined()) tiled_ = decode_tiles();
  const std::int64_t first = chunk_ == 0 ? 0 : WanVaeConfig::frames(chunk_);
  const std::int64_t end = WanVaeConfig::frames(++chunk_);
  return tiled_.narrow(0, first, end - first);
}

Tensor WanVaeDecoder::next() {
  TORCH_CHECK(has_next(), "[wan_vae] no latent frame after the last of ", latent_.size(0));
  const Tensor map = tiling_ ? next_tiled() : next_map();
  return unpatchify(map, vae_.config.patch_size).to(at::kFloat).clamp_(-1, 1);
}

Tensor frames_to_uint8(const Tensor& frames) {
  const Tensor levels = (frames.clamp(-1, 1) * 0.5 + 0.5) * 255;
  return levels.round_().to(at::kByte).permute({1, 2, 3, 0}).contiguous();
}

}  // namespace diptych

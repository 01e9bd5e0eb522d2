#include "lib/models/wan_vae/wan_vae.h"

#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {
namespace {

constexpr std::size_t kLatentChannels = 48;

// Of the latents of the release (Wan2_2_VAE.__init__).
constexpr std::array<double, kLatentChannels> kMean = {
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174,  0.1838,  0.1557,  -0.1382, 0.0542,
    0.2813,  0.0891,  0.1570,  -0.0098, 0.0375,  -0.1825, -0.2246, -0.1207, -0.0698, 0.5109,
    0.2665,  -0.2108, -0.2158, 0.2502,  -0.2055, -0.0322, 0.1109,  0.1567,  -0.0729, 0.0899,
    -0.2799, -0.1230, -0.0313, -0.1649, 0.0117,  0.0723,  -0.2839, -0.2083, -0.0520, 0.3748,
    0.0152,  0.1957,  0.1433,  -0.2944, 0.3573,  -0.0548, -0.1681, -0.0667};
constexpr std::array<double, kLatentChannels> kStd = {
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744};

constexpr std::int64_t kPixels = WanVaeConfig::kPatch * WanVaeConfig::kPatch;  // of a position
constexpr std::int64_t kColours = 3;

}  // namespace

WanVaeConfig WanVaeConfig::infer(const Weights& weights) {
  WanVaeConfig config;
  if (weights.is_dummy()) return config;
  const auto width = [&](const char* name, std::size_t dims) {
    const auto shape = weights.shape(name);
    if (shape.size() != dims || shape[0] < 1) {
      throw InputError("{}: has shape {}, expected {} dimensions, the first of at least 1", name,
                       shown_shape(shape), dims);
    }
    return shape[0];
  };
  config.base_dim = width("encoder.conv1.weight", 5);
  config.decoder_base_dim = width("decoder.head.0.gamma", 4);
  config.z_dim = width("conv2.weight", 5);
  if (config.z_dim != static_cast<std::int64_t>(kLatentChannels)) {
    throw InputError("conv2.weight: {} latent channels, expected {}: not an autoencoder of Wan 2.2",
                     config.z_dim, kLatentChannels);
  }
  return config;
}

namespace {

WanVaeMiddle load_middle(const Weights& w, std::int64_t channels, KernelPolicy kernels) {
  const auto block = [&](const char* name) {
    return WanVaeResidualBlock::load(w.scope(name), channels, channels, kernels);
  };
  return {block("0"), block("2"), WanVaeAttention::load(w.scope("1"), channels, kernels)};
}

WanVaeHead load_head(const Weights& w, std::int64_t in, std::int64_t out, KernelPolicy kernels) {
  return {WanVaeNorm::load(w.scope("0"), in, kernels),
          WanVaeConv::load(w.scope("2"), out, in, 3, 3)};
}

// The blocks "0", "1", ... of a stage.
std::vector<WanVaeResidualBlock> load_blocks(const Weights& w, std::int64_t in, std::int64_t out,
                                             std::int64_t count, KernelPolicy kernels) {
  std::vector<WanVaeResidualBlock> blocks;
  for (std::int64_t i = 0; i < count; ++i) {
    blocks.push_back(
        WanVaeResidualBlock::load(w.scope(std::to_string(i)), i == 0 ? in : out, out, kernels));
  }
  return blocks;
}

void load_encoder(WanVae& vae, const Weights& w, KernelPolicy kernels) {
  const WanVaeConfig& c = vae.config;
  const std::size_t last = c.stages() - 1;
  vae.encoder.conv1 = WanVaeConv::load(w.scope("conv1"), c.base_dim, kColours * kPixels, 3, 3);
  for (std::size_t s = 0; s <= last; ++s) {
    const Weights stage = w.scope(fmt::format("downsamples.{}.downsamples", s));
    const std::int64_t in = s == 0 ? c.base_dim : c.encoder_dim(s - 1), out = c.encoder_dim(s);
    WanVaeDownStage& down = vae.encoder.downsamples.emplace_back();
    down.blocks = load_blocks(stage, in, out, c.num_res_blocks, kernels);
    if (s == last) break;
    down.downsample = WanVaeDownsample::load(stage.scope(std::to_string(c.num_res_blocks)), out,
                                             c.temperal_downsample[s]);
  }
  const std::int64_t channels = c.encoder_dim(last);
  vae.encoder.middle = load_middle(w.scope("middle"), channels, kernels);
  vae.encoder.head = load_head(w.scope("head"), channels, 2 * c.z_dim, kernels);
}

void load_decoder(WanVae& vae, const Weights& w, KernelPolicy kernels) {
  const WanVaeConfig& c = vae.config;
  const std::size_t last = c.stages() - 1;
  std::int64_t in = c.decoder_dim(last);
  vae.decoder.conv1 = WanVaeConv::load(w.scope("conv1"), in, c.z_dim, 3, 3);
  vae.decoder.middle = load_middle(w.scope("middle"), in, kernels);
  for (std::size_t s = 0; s <= last; ++s) {
    const Weights stage = w.scope(fmt::format("upsamples.{}.upsamples", s));
    const std::int64_t out = c.decoder_dim(last - s), blocks = c.num_res_blocks + 1;
    WanVaeUpStage& up = vae.decoder.upsamples.emplace_back();
    up.blocks = load_blocks(stage, in, out, blocks, kernels);
    in = out;
    if (s == last) break;
    up.upsample = WanVaeUpsample::load(stage.scope(std::to_string(blocks)), out,
                                       c.temperal_downsample[last - 1 - s]);
  }
  vae.decoder.head = load_head(w.scope("head"), in, kColours * kPixels, kernels);
}

Tensor table(const std::array<double, kLatentChannels>& values, const at::TensorOptions& options) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble)
      .to(options.device(), options.dtype().toScalarType());
}

}  // namespace

WanVae WanVae::load(const Weights& weights, const WanVaeConfig& config, KernelPolicy kernels) {
  WanVae vae;
  vae.config = config;
  // In the dtype of the pass, as the official code has them.
  vae.mean = table(kMean, weights.options());
  vae.inverse_std = table(kStd, weights.options()).reciprocal();
  const std::int64_t z = config.z_dim;
  vae.conv1 = WanVaeLinear::load(weights.scope("conv1"), 2 * z, 2 * z);
  vae.conv2 = WanVaeLinear::load(weights.scope("conv2"), z, z);
  load_encoder(vae, weights.scope("encoder"), kernels);
  load_decoder(vae, weights.scope("decoder"), kernels);
  if (!weights.is_dummy()) weights.require_all_read();
  return vae;
}

namespace {

// A step's result is reported and handed on.
struct Report {
  const WanVaeObserver& observer;
  std::int64_t chunk = 0;

  Tensor operator()(const std::string& name, Tensor value) const {
    if (observer) observer(chunk, name, value.permute({3, 0, 1, 2}));
    return value;
  }
};

Tensor run_middle(const WanVaeMiddle& middle, Tensor h, WanVaeHistory& history,
                  const Report& report, const std::string& scope) {
  h = report(scope + ".middle0", middle.block_0.forward(h, history));
  h = report(scope + ".middle1", middle.attention.forward(h));
  return report(scope + ".middle2", middle.block_2.forward(h, history));
}

Tensor run_stage(const WanVaeDownStage& stage, Tensor x, WanVaeHistory& history) {
  Tensor h = x;
  for (const WanVaeResidualBlock& block : stage.blocks) h = block.forward(h, history);
  if (!stage.downsample) return h.add_(x);
  h = stage.downsample->forward(std::move(h), history);
  return h.add_(wan_vae_average_down(x, stage.downsample->time_conv ? 2 : 1));
}

Tensor run_stage(const WanVaeUpStage& stage, Tensor x, WanVaeHistory& history) {
  Tensor h = x;
  if (!stage.upsample) x.reset();  // no shortcut
  for (const WanVaeResidualBlock& block : stage.blocks) h = block.forward(h, history);
  if (!stage.upsample) return h;
  h = stage.upsample->forward(std::move(h), history);
  wan_vae_add_repeated(h, x, stage.upsample->time_conv ? 2 : 1);
  return h;
}

// [3, n, 2 h, 2 w] -> [n, h, w, 12], channels (colour, column, row).
Tensor patchify(const Tensor& video) {
  constexpr std::int64_t p = WanVaeConfig::kPatch;
  const std::int64_t n = video.size(1), h = video.size(2) / p, w = video.size(3) / p;
  return video.reshape({kColours, n, h, p, w, p})
      .permute({1, 2, 4, 0, 5, 3})
      .reshape({n, h, w, kColours * kPixels});
}

Tensor unpatchify(const Tensor& x) {
  constexpr std::int64_t p = WanVaeConfig::kPatch;
  const std::int64_t n = x.size(0), h = x.size(1), w = x.size(2);
  return x.view({n, h, w, kColours, p, p})
      .permute({3, 0, 1, 5, 2, 4})
      .reshape({kColours, n, p * h, p * w});
}

// One chunk of frames, patchified -> moments [1, h, w, 2 z].
Tensor encode_chunk(const WanVae& vae, Tensor h, WanVaeHistory& history, const Report& report) {
  const auto& encoder = vae.encoder;
  h = report("encoder.conv1", encoder.conv1.forward(h, history));
  for (std::size_t s = 0; s < encoder.downsamples.size(); ++s) {
    h = report(fmt::format("encoder.down{}", s),
               run_stage(encoder.downsamples[s], std::move(h), history));
  }
  h = run_middle(encoder.middle, std::move(h), history, report, "encoder");
  h = wan_vae_norm_silu_conv(encoder.head.norm, encoder.head.conv, std::move(h), history);
  return vae.conv1.forward(report("encoder.out", std::move(h)));
}

// One latent frame [1, h, w, z] -> frames [3, n, H, W].
Tensor decode_chunk(const WanVae& vae, const Tensor& latent, WanVaeHistory& history,
                    const Report& report) {
  const auto& decoder = vae.decoder;
  Tensor h = vae.conv2.forward(latent / vae.inverse_std + vae.mean);
  h = report("decoder.conv1", decoder.conv1.forward(h, history));
  h = run_middle(decoder.middle, std::move(h), history, report, "decoder");
  for (std::size_t s = 0; s < decoder.upsamples.size(); ++s) {
    h = report(fmt::format("decoder.up{}", s),
               run_stage(decoder.upsamples[s], std::move(h), history));
  }
  h = wan_vae_norm_silu_conv(decoder.head.norm, decoder.head.conv, std::move(h), history);
  return unpatchify(h);
}

}  // namespace

Tensor WanVaeMoments::latent(const Tensor& eps) const {
  const Tensor z = mu + at::exp(0.5 * log_var) * eps;
  return z.permute({1, 2, 3, 0}).contiguous();
}

WanVaeMoments WanVae::encode(const Tensor& video, const WanVaeObserver& observer) const {
  const std::int64_t side = config.spatial();
  TORCH_CHECK(video.dim() == 4 && video.size(0) == kColours && video.size(1) >= 1 &&
                  video.size(2) >= side && video.size(2) % side == 0 && video.size(3) >= side &&
                  video.size(3) % side == 0,
              "[wan_vae] video is ", video.sizes(), ", expected [3, T, H, W] with sides of ", side);
  WanVaeHistory history;
  std::vector<Tensor> mu, log_var;
  const std::int64_t chunks = WanVaeConfig::latent_frames(video.size(1));
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    history.begin_chunk(chunk + 1 == chunks);
    const std::int64_t first = chunk == 0 ? 0 : WanVaeConfig::frames(chunk);
    const std::int64_t count = chunk == 0 ? 1 : WanVaeConfig::kTemporal;
    Tensor frames = video.narrow(1, first, count).to(mean.options());
    frames = patchify(frames);
    const Tensor moments = encode_chunk(*this, std::move(frames), history, {observer, chunk});
    mu.push_back((moments.narrow(3, 0, config.z_dim) - mean) * inverse_std);
    log_var.push_back(moments.narrow(3, config.z_dim, config.z_dim).clone());
  }
  const auto joined = [](const std::vector<Tensor>& parts) {  // [t, h, w, z] -> [z, t, h, w]
    return at::cat(parts).to(at::kFloat).permute({3, 0, 1, 2}).contiguous();
  };
  return {joined(mu), joined(log_var)};
}

WanVaeDecoder::WanVaeDecoder(const WanVae& vae, Tensor latent, WanVaeObserver observer)
    : vae_(vae), latent_(std::move(latent)), observer_(std::move(observer)) {
  TORCH_CHECK(latent_.dim() == 4 && latent_.numel() > 0 && latent_.size(3) == vae.config.z_dim,
              "[wan_vae] latent is ", latent_.sizes(), ", expected [t, h, w, ", vae.config.z_dim,
              "]");
}

Tensor WanVaeDecoder::next() {
  TORCH_CHECK(has_next(), "[wan_vae] no latent frame after the last of ", latent_.size(0));
  history_.begin_chunk(chunk_ + 1 == latent_.size(0));
  const Tensor latent = latent_.narrow(0, chunk_, 1).to(vae_.mean.options());
  const Tensor frames = decode_chunk(vae_, latent, history_, {observer_, chunk_});
  ++chunk_;
  return frames.to(at::kFloat).clamp_(-1, 1);
}

Tensor frames_to_uint8(const Tensor& frames) {
  const Tensor levels = (frames.clamp(-1, 1) * 0.5 + 0.5) * 255;
  return levels.round_().to(at::kByte).permute({1, 2, 3, 0}).contiguous();
}

}  // namespace diptych

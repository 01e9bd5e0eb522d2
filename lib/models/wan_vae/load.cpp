// How a WanVae gets its weights.
#include "lib/models/wan_vae/layout.h"
#include "lib/models/wan_vae/wan_vae.h"

namespace diptych {
namespace {

class Loader {
 public:
  Loader(WanVae& vae, const Weights& weights, const WanVaeCompute& compute)
      : vae_(vae),
        c_(vae.config),
        weights_(weights),
        compute_(compute),
        paths_(vae.config),
        names_(WanVaeBlockNames::of(vae.config.naming)) {}

  void encoder() {
    const std::size_t last = c_.stages() - 1;
    vae_.encoder.conv1 = WanVaeConv::load(weights_.scope(paths_.conv_in("encoder")), c_.base_dim,
                                          c_.patch_channels(), 3, 3, compute_);
    for (std::size_t s = 0; s <= last; ++s) {
      const std::int64_t in = c_.encoder_in(s), out = c_.encoder_dim(s);
      WanVaeDownStage& down = vae_.encoder.downsamples.emplace_back();
      for (std::int64_t i = 0; i < c_.num_res_blocks; ++i)
        down.blocks.push_back(
            block(paths_.down_block(s, i), i == 0 ? in : out, out, c_.encoder_frames(s)));
      if (s == last) break;
      down.downsample = WanVaeDownsample::load(weights_.scope(paths_.downsample(s)), out,
                                               c_.halves_time(s), compute_);
    }
    vae_.encoder.middle = middle("encoder", c_.encoder_dim(last));
    vae_.encoder.head = head("encoder", c_.encoder_dim(last), 2 * c_.z_dim);
  }

  void decoder() {
    const std::size_t last = c_.stages() - 1;
    vae_.decoder.conv1 = WanVaeConv::load(weights_.scope(paths_.conv_in("decoder")),
                                          c_.decoder_in(0), c_.z_dim, 3, 3, compute_);
    vae_.decoder.middle = middle("decoder", c_.decoder_in(0));
    for (std::size_t s = 0; s <= last; ++s) {
      const std::int64_t in = c_.decoder_in(s), out = c_.decoder_out(s);
      WanVaeUpStage& up = vae_.decoder.upsamples.emplace_back();
      for (std::int64_t i = 0; i <= c_.num_res_blocks; ++i)
        up.blocks.push_back(
            block(paths_.up_block(s, i), i == 0 ? in : out, out, c_.decoder_frames(s)));
      if (s == last) break;
      up.upsample = WanVaeUpsample::load(weights_.scope(paths_.upsample(s)), c_.upsampled_dim(s),
                                         out, c_.doubles_time(s), compute_);
    }
    vae_.decoder.head = head("decoder", c_.decoder_out(last), c_.patch_channels());
  }

  void between() {
    const std::int64_t z = c_.z_dim;
    vae_.conv1 = WanVaeLinear::load(weights_.scope(paths_.quant_conv()), 2 * z, 2 * z);
    vae_.conv2 = WanVaeLinear::load(weights_.scope(paths_.post_quant_conv()), z, z);
  }

 private:
  // frames: of chunks.
  WanVaeResidualBlock block(const std::string& path, std::int64_t in, std::int64_t out,
                            std::int64_t frames = 1) const {
    WanVaeCompute compute = compute_;
    compute.pairs = frames % 2 == 0;
    return WanVaeResidualBlock::load(weights_.scope(path), names_, in, out, compute);
  }
  WanVaeMiddle middle(const std::string& side, std::int64_t channels) const {
    return {
        block(paths_.middle_block(side, 0), channels, channels),
        block(paths_.middle_block(side, 1), channels, channels),
        WanVaeAttention::load(weights_.scope(paths_.middle_attention(side)), channels, compute_)};
  }
  WanVaeHead head(const std::string& side, std::int64_t in, std::int64_t out) const {
    return {WanVaeNorm::load(weights_.scope(paths_.norm_out(side)), in, compute_.kernels),
            WanVaeConv::load(weights_.scope(paths_.conv_out(side)), out, in, 3, 3, compute_)};
  }

  WanVae& vae_;
  const WanVaeConfig& c_;
  const Weights& weights_;
  WanVaeCompute compute_;
  WanVaePaths paths_;
  WanVaeBlockNames names_;
};

}  // namespace

Tensor wan_vae_table(const std::vector<double>& values, const at::TensorOptions& options) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble)
      .to(options.device(), options.dtype().toScalarType());
}

WanVae WanVae::load(const Weights& weights, const WanVaeConfig& config,
                    const WanVaeCompute& compute) {
  TORCH_CHECK(!compute.tf32 || weights.options().dtype() == at::kFloat, "[wan_vae] weights are ",
              weights.options().dtype(), ", expected float32 for tf32");
  WanVae vae;
  vae.config = config;
  // In the dtype of the pass, as the official code has them.
  vae.mean = wan_vae_table(config.latents_mean, weights.options());
  vae.inverse_std = wan_vae_table(config.latents_std, weights.options()).reciprocal();
  Loader loader(vae, weights, compute);
  loader.between();
  loader.encoder();
  loader.decoder();
  if (!weights.is_dummy()) weights.require_all_read();
  return vae;
}

}  // namespace diptych

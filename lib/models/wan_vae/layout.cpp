#include "lib/models/wan_vae/layout.h"

#include <fmt/format.h>

namespace diptych {

WanVaePaths::WanVaePaths(const WanVaeConfig& config)
    : original_(config.naming == WanVaeNaming::original),
      residual_(config.is_residual),
      blocks_(config.num_res_blocks) {}

std::string WanVaePaths::conv_in(const std::string& side) const {
  return side + (original_ ? ".conv1" : ".conv_in");
}
std::string WanVaePaths::norm_out(const std::string& side) const {
  return side + (original_ ? ".head.0" : ".norm_out");
}
std::string WanVaePaths::conv_out(const std::string& side) const {
  return side + (original_ ? ".head.2" : ".conv_out");
}
std::string WanVaePaths::middle_block(const std::string& side, std::size_t index) const {
  if (original_) return fmt::format("{}.middle.{}", side, 2 * index);
  return fmt::format("{}.mid_block.resnets.{}", side, index);
}
std::string WanVaePaths::middle_attention(const std::string& side) const {
  return side + (original_ ? ".middle.1" : ".mid_block.attentions.0");
}

// Without residual stages the encoder is one list of blocks and downsamplings.
std::string WanVaePaths::down_block(std::size_t stage, std::int64_t block) const {
  const char* const list = original_ ? "downsamples" : "down_blocks";
  if (!residual_) {
    const std::int64_t place = static_cast<std::int64_t>(stage) * (blocks_ + 1) + block;
    return fmt::format("encoder.{}.{}", list, place);
  }
  return fmt::format("encoder.{}.{}.{}.{}", list, stage, original_ ? list : "resnets", block);
}

std::string WanVaePaths::downsample(std::size_t stage) const {
  if (original_ || !residual_) return down_block(stage, blocks_);
  return fmt::format("encoder.down_blocks.{}.downsampler", stage);
}

std::string WanVaePaths::up_block(std::size_t stage, std::int64_t block) const {
  if (!original_) return fmt::format("decoder.up_blocks.{}.resnets.{}", stage, block);
  if (residual_) return fmt::format("decoder.upsamples.{}.upsamples.{}", stage, block);
  const std::int64_t place = static_cast<std::int64_t>(stage) * (blocks_ + 2) + block;
  return fmt::format("decoder.upsamples.{}", place);
}

std::string WanVaePaths::upsample(std::size_t stage) const {
  if (original_) return up_block(stage, blocks_ + 1);
  return fmt::format("decoder.up_blocks.{}.{}", stage, residual_ ? "upsampler" : "upsamplers.0");
}

WanVaeBlockNames WanVaeBlockNames::of(WanVaeNaming naming) {
  if (naming == WanVaeNaming::original)
    return {"residual.0", "residual.2", "residual.3", "residual.6", "shortcut"};
  return {"norm1", "conv1", "norm2", "conv2", "conv_shortcut"};
}

namespace {

class Layout {
 public:
  explicit Layout(const WanVaeConfig& config)
      : c_(config), paths_(config), names_(WanVaeBlockNames::of(config.naming)) {}

  std::vector<TensorShape> take() {
    encoder();
    conv(paths_.quant_conv(), {2 * c_.z_dim, 2 * c_.z_dim, 1, 1, 1});
    conv(paths_.post_quant_conv(), {c_.z_dim, c_.z_dim, 1, 1, 1});
    decoder();
    return std::move(tensors_);
  }

 private:
  void conv(const std::string& path, std::vector<std::int64_t> shape) {
    const std::int64_t out = shape[0];
    tensors_.push_back({path + ".weight", std::move(shape)});
    tensors_.push_back({path + ".bias", {out}});
  }
  void norm(const std::string& path, std::vector<std::int64_t> shape) {
    tensors_.push_back({path + ".gamma", std::move(shape)});
  }

  void block(const std::string& path, std::int64_t in, std::int64_t out) {
    const std::string below = path + ".";
    norm(below + names_.norm1, {in, 1, 1, 1});
    conv(below + names_.conv1, {out, in, 3, 3, 3});
    norm(below + names_.norm2, {out, 1, 1, 1});
    conv(below + names_.conv2, {out, out, 3, 3, 3});
    if (in != out) conv(below + names_.shortcut, {out, in, 1, 1, 1});
  }
  void middle(const std::string& side, std::int64_t channels) {
    block(paths_.middle_block(side, 0), channels, channels);
    const std::string attention = paths_.middle_attention(side);
    norm(attention + ".norm", {channels, 1, 1});
    conv(attention + ".to_qkv", {3 * channels, channels, 1, 1});
    conv(attention + ".proj", {channels, channels, 1, 1});
    block(paths_.middle_block(side, 1), channels, channels);
  }
  void head(const std::string& side, std::int64_t in, std::int64_t out) {
    norm(paths_.norm_out(side), {in, 1, 1, 1});
    conv(paths_.conv_out(side), {out, in, 3, 3, 3});
  }

  void encoder() {
    const std::size_t last = c_.stages() - 1;
    conv(paths_.conv_in("encoder"), {c_.base_dim, c_.patch_channels(), 3, 3, 3});
    for (std::size_t s = 0; s <= last; ++s) {
      const std::int64_t out = c_.encoder_dim(s);
      for (std::int64_t i = 0; i < c_.num_res_blocks; ++i)
        block(paths_.down_block(s, i), i == 0 ? c_.encoder_in(s) : out, out);
      if (s == last) break;
      conv(paths_.downsample(s) + ".resample.1", {out, out, 3, 3});
      if (c_.halves_time(s)) conv(paths_.downsample(s) + ".time_conv", {out, out, 3, 1, 1});
    }
    middle("encoder", c_.encoder_dim(last));
    head("encoder", c_.encoder_dim(last), 2 * c_.z_dim);
  }

  void decoder() {
    const std::size_t last = c_.stages() - 1;
    conv(paths_.conv_in("decoder"), {c_.decoder_in(0), c_.z_dim, 3, 3, 3});
    middle("decoder", c_.decoder_in(0));
    for (std::size_t s = 0; s <= last; ++s) {
      const std::int64_t out = c_.decoder_out(s);
      for (std::int64_t i = 0; i <= c_.num_res_blocks; ++i)
        block(paths_.up_block(s, i), i == 0 ? c_.decoder_in(s) : out, out);
      if (s == last) break;
      conv(paths_.upsample(s) + ".resample.1", {c_.upsampled_dim(s), out, 3, 3});
      if (c_.doubles_time(s)) conv(paths_.upsample(s) + ".time_conv", {2 * out, out, 3, 1, 1});
    }
    head("decoder", c_.decoder_out(last), c_.patch_channels());
  }

  const WanVaeConfig& c_;
  WanVaePaths paths_;
  WanVaeBlockNames names_;
  std::vector<TensorShape> tensors_;
};

}  // namespace

std::vector<TensorShape> wan_vae_layout(const WanVaeConfig& config) {
  return Layout(config).take();
}

}  // namespace diptych

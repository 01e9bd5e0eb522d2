#include "lib/models/wan_vae/memory.h"

#include <algorithm>

#include <c10/util/accumulate.h>

#include "lib/models/wan_vae/layout.h"
#include "lib/ops/conv3d.h"

namespace diptych {
namespace {

constexpr std::int64_t kKernel = 3;

std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

// A pass at the sizes of one of its steps. Each step says how many bytes its maps have, those
// included that stay beside them.
class PassSizes {
 public:
  PassSizes(std::int64_t width, std::int64_t height, std::int64_t frames, bool history,
            const WanVaePrecision& precision)
      : width_(width), height_(height), frames_(frames), history_(history), precision_(precision) {}

  std::int64_t map(std::int64_t channels) const { return frames_ * frame(channels); }
  void step(std::int64_t bytes) { most_ = std::max(most_, bytes); }
  std::int64_t bytes() const { return most_ + kept_; }

  void conv(std::int64_t in, std::int64_t out) {
    step(map(in) + room(in) + convolved(in, out));
    become_map(map(in), out);
  }
  // Norm, SiLU and convolution of what a block of that width made.
  void head(std::int64_t in, std::int64_t out) {
    const std::int64_t part = adds(in) ? 0 : convolved(in, in);
    norm_conv_of(0, map(in) + part, 2 * frame(in), room(in), convolved(in, out));  // a frame's sum
    become_map(0, out);
  }
  // `stage`: the bytes of its stage's input, where that is held to the end. The stage's first block
  // has a map before it, the others what a convolution made, too, unless that is in the map.
  void block(std::int64_t in, std::int64_t out, std::int64_t stage = 0, bool first = true) {
    const std::int64_t beside = stage + (first && stage > 0 ? 0 : map(in));
    norm_conv_of(beside, first || adds(in) ? 0 : convolved(in, in), frame(in), block_room(in, out),
                 convolved(in, out));
    if (adds(out)) {
      // The map that is added is there before the second convolution, and a block's input of
      // another width is gone.
      if (in != out) step(beside + map(out) + convolved(in, out) + linear_parts(in));
      norm_conv_of(in != out ? stage + map(out) : beside, convolved(in, out), 0,
                   block_room(out, out), map(out));
      return;
    }
    // Where the first convolution made no map, a frame becomes one before its norm.
    norm_conv_of(beside, convolved(in, out), (mixed() ? 2 : 1) * frame(out), block_room(out, out),
                 convolved(out, out));
    if (in != out) step(beside + convolved(out, out) + map(out) + linear_parts(in));
  }
  void middle(std::int64_t channels) {
    block(channels, channels);
    become_map(map(channels), channels);
    // Input, q, k, v, attended, projected; in parts q, k and v twice, before anything is projected.
    step((precision_.parts ? 8 : 6) * map(channels));
    block(channels, channels);
    become_map(map(channels), channels);
  }
  // Of a stage whose input has `stage` bytes.
  void downsample(std::int64_t channels, std::int64_t stage, bool temporal) {
    become_product(stage, channels);
    const std::int64_t padded = product_frame(channels, width_ + 1, height_ + 1) * frames_;
    step(stage + product(channels) + padded);
    width_ /= 2;
    height_ /= 2;
    step(stage + padded + product(channels));
    if (temporal && history_) {
      kept_ += product_frame(channels, width_, height_);
      frames_ /= 2;
    }
    become_map(stage, channels);
  }
  void upsample(std::int64_t in, std::int64_t out, std::int64_t stage, bool temporal) {
    become_product(stage, in);
    const std::int64_t times = temporal && history_ ? 2 : 1;
    if (times == 2) step(stage + product(in) + room(in) + 2 * product(in));
    const std::int64_t before = times * product(in);
    frames_ *= times;
    width_ *= 2;
    height_ *= 2;
    if (precision_.conv3d && conv3d_kernel_fits(out, in, temporal ? 2 : 1)) {
      step(stage + before + map(out));
      return;
    }
    step(stage + before + product(in));
    step(stage + product(in) + product(out));
    become_map(stage, out);
  }

 private:
  bool mixed() const { return precision_.maps != precision_.products; }
  std::int64_t frame(std::int64_t channels) const {
    return channels * width_ * height_ * size_of(precision_.maps);
  }
  // What a convolution reads or makes.
  std::int64_t product_frame(std::int64_t channels, std::int64_t width, std::int64_t height) const {
    return channels * width * height * size_of(precision_.products);
  }
  std::int64_t product(std::int64_t channels) const {
    return frames_ * product_frame(channels, width_, height_);
  }
  // What a causal convolution of three frames makes, before that is summed.
  std::int64_t convolved(std::int64_t in, std::int64_t out) const {
    const bool parts = frames_ > 1 && wan_vae_splits_taps(out, in, precision_.products) &&
                       !(precision_.conv3d && conv3d_kernel_fits(out, in));
    return (parts ? kKernel : 1) * product(out);
  }
  // Whether a convolution with so many outputs as inputs adds a map to them.
  bool adds(std::int64_t channels) const {
    return precision_.conv3d && conv3d_kernel_fits(channels, channels);
  }
  // A frame in the parts that tensor cores read.
  std::int64_t linear_parts(std::int64_t channels) const {
    return precision_.parts ? 2 * product_frame(channels, width_, height_) : 0;
  }
  // A copy, where the two have other dtypes.
  void become_map(std::int64_t beside, std::int64_t channels) {
    if (mixed()) step(beside + product(channels) + map(channels));
  }
  // Of what a block made.
  void become_product(std::int64_t beside, std::int64_t channels) {
    const std::int64_t part = adds(channels) ? 0 : convolved(channels, channels);
    step(beside + map(channels) + part + product(channels));
  }
  // Of something that has `held` bytes; `norm`: the bytes between sum, norm and SiLU, which the
  // reference has and the kernel has not; `made`: of the convolution's results.
  void norm_conv_of(std::int64_t beside, std::int64_t held, std::int64_t norm, std::int64_t filled,
                    std::int64_t made) {
    step(beside + held + filled + norm);
    step(beside + filled + made);
  }
  // Frames before a chunk that a convolution keeps, and its input with them in front.
  std::int64_t before_of(std::int64_t channels) const {
    return history_ ? (kKernel - 1) * product_frame(channels, width_, height_) : 0;
  }
  std::int64_t room_of(std::int64_t channels) const {
    return product(channels) + before_of(channels);
  }
  std::int64_t room(std::int64_t channels) {
    kept_ += before_of(channels);
    return room_of(channels);
  }
  // The same of a block's convolution, which may take frames in pairs.
  std::int64_t block_room(std::int64_t in, std::int64_t out) {
    const std::int64_t one_by_one = room(in);
    const bool in_pairs = precision_.conv3d && frames_ % 2 == 0 && wan_vae_takes_pairs(out, in);
    return in_pairs ? 2 * product(in) : one_by_one;
  }

  std::int64_t width_, height_, frames_;  // of a map
  bool history_;                          // chunks follow each other
  WanVaePrecision precision_;
  std::int64_t most_ = 0, kept_ = 0;
};

}  // namespace

std::int64_t wan_vae_decode_bytes(const WanVaeConfig& c, const WanVaeClip& clip,
                                  WanVaePrecision precision) {
  const std::size_t last = c.stages() - 1;
  PassSizes pass(clip.width / c.spatial(), clip.height / c.spatial(), 1, clip.frames > 1,
                 precision);
  pass.conv(c.z_dim, c.decoder_in(0));
  pass.middle(c.decoder_in(0));
  for (std::size_t s = 0; s <= last; ++s) {
    const std::int64_t in = c.decoder_in(s), out = c.decoder_out(s);
    const std::int64_t stage = c.is_residual && s < last ? pass.map(in) : 0;
    for (std::int64_t i = 0; i <= c.num_res_blocks; ++i)
      pass.block(i == 0 ? in : out, out, stage, i == 0);
    if (s < last) pass.upsample(out, c.upsampled_dim(s), stage, c.doubles_time(s));
  }
  pass.head(c.decoder_out(last), c.patch_channels());
  return pass.bytes();
}

std::int64_t wan_vae_encode_bytes(const WanVaeConfig& c, const WanVaeClip& clip,
                                  WanVaePrecision precision) {
  const std::size_t last = c.stages() - 1;
  const bool history = clip.frames > WanVaeConfig::kTemporal;
  PassSizes pass(clip.width / c.patch_size, clip.height / c.patch_size,
                 history ? WanVaeConfig::kTemporal : 1, history, precision);
  pass.conv(c.patch_channels(), c.base_dim);
  for (std::size_t s = 0; s <= last; ++s) {
    const std::int64_t in = c.encoder_in(s), out = c.encoder_dim(s);
    const std::int64_t stage = c.is_residual ? pass.map(in) : 0;
    for (std::int64_t i = 0; i < c.num_res_blocks; ++i)
      pass.block(i == 0 ? in : out, out, stage, i == 0);
    if (s < last) pass.downsample(out, stage, c.halves_time(s));
  }
  pass.middle(c.encoder_dim(last));
  pass.head(c.encoder_dim(last), 2 * c.z_dim);
  return pass.bytes();
}

namespace {

// What is on the device at a time.
WanVaeClip largest_tile(const WanVaeConfig& c, const WanVaeClip& clip, const WanVaeTiling& tiling) {
  if (!tiling.splits(c, clip.height / c.spatial(), clip.width / c.spatial())) return clip;
  return {std::min(clip.width, tiling.tile_sample_min_width),
          std::min(clip.height, tiling.tile_sample_min_height), clip.frames};
}

}  // namespace

std::int64_t wan_vae_decode_bytes(const WanVaeConfig& config, const WanVaeClip& clip,
                                  WanVaePrecision precision, const WanVaeTiling& tiling) {
  return wan_vae_decode_bytes(config, largest_tile(config, clip, tiling), precision);
}

std::int64_t wan_vae_encode_bytes(const WanVaeConfig& config, const WanVaeClip& clip,
                                  WanVaePrecision precision, const WanVaeTiling& tiling) {
  return wan_vae_encode_bytes(config, largest_tile(config, clip, tiling), precision);
}

namespace {

// Prefixes of blocks whose chunks have pairs of frames.
std::vector<std::string> blocks_of_pairs(const WanVaeConfig& c) {
  const WanVaePaths paths(c);
  std::vector<std::string> blocks;
  for (std::size_t s = 0; s < c.stages(); ++s) {
    for (std::int64_t i = 0; i <= c.num_res_blocks; ++i) {
      if (c.decoder_frames(s) % 2 == 0) blocks.push_back(paths.up_block(s, i) + ".");
      if (c.encoder_frames(s) % 2 == 0 && i < c.num_res_blocks)
        blocks.push_back(paths.down_block(s, i) + ".");
    }
  }
  return blocks;
}

}  // namespace

std::int64_t wan_vae_weight_bytes(const WanVaeConfig& c, WanVaePrecision precision) {
  const std::vector<std::string> paired = blocks_of_pairs(c);
  std::int64_t bytes = 0;
  bool convolves = false;  // a bias goes with the weight before it
  for (const TensorShape& tensor : wan_vae_layout(c)) {
    const bool is_bias = tensor.name.ends_with(".bias");
    if (!is_bias)
      convolves = tensor.name.ends_with(".weight") && tensor.shape[2] * tensor.shape.back() > 1;
    std::int64_t count = c10::multiply_integers(tensor.shape);
    // Four phases of 2x2 taps instead of 3x3.
    if (precision.conv3d && tensor.name.starts_with("decoder.") &&
        tensor.name.ends_with(".resample.1.weight") &&
        conv3d_kernel_fits(tensor.shape[0], tensor.shape[1])) {
      count = count / 9 * 16;
    }
    // The sums of pairs beside 3x3x3 taps.
    if (precision.conv3d && tensor.shape.size() == 5 && tensor.shape[2] * tensor.shape[3] == 9 &&
        wan_vae_takes_pairs(tensor.shape[0], tensor.shape[1]) &&
        std::ranges::any_of(
            paired, [&](const std::string& block) { return tensor.name.starts_with(block); })) {
      count = count / 3 * 5;
    }
    bytes += count * size_of(convolves ? precision.products : precision.maps);
  }
  return bytes;
}

}  // namespace diptych

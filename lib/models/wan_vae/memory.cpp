#include "lib/models/wan_vae/memory.h"

#include <algorithm>

#include <c10/util/accumulate.h>

#include "lib/models/wan_vae/layout.h"

namespace diptych {
namespace {

constexpr std::int64_t kKernel = 3;

// A pass at the sizes of one of its steps. Each step says how many elements its maps have, those
// included that stay beside them.
class Pass {
 public:
  Pass(std::int64_t width, std::int64_t height, std::int64_t frames, bool history)
      : width_(width), height_(height), frames_(frames), history_(history) {}

  std::int64_t map(std::int64_t channels) const { return frames_ * frame(channels); }
  void step(std::int64_t elements) { most_ = std::max(most_, elements); }

  void conv(std::int64_t in, std::int64_t out) { step(map(in) + room(in) + map(out)); }
  // Norm, SiLU and convolution of the last thing that is held, with `beside` beside it.
  void norm_conv(std::int64_t beside, std::int64_t in, std::int64_t out) {
    const std::int64_t filled = room(in);
    step(beside + map(in) + filled + frame(in));
    step(beside + filled + map(out));
  }
  // `stage`: the elements of its stage's input, where that is held to the end; `first`: it is the
  // block's input.
  void block(std::int64_t in, std::int64_t out, std::int64_t stage = 0, bool first = false) {
    const std::int64_t beside = stage + (first ? 0 : map(in));
    step(beside + room_of(in) + std::max(map(out), frame(in)));
    norm_conv(beside, out, out);
    kept_ += before_of(in);
    if (in != out) step(beside + 2 * map(out));
  }
  void middle(std::int64_t channels) {
    block(channels, channels);
    step(6 * map(channels));  // input, q, k, v, attended, projected
    block(channels, channels);
  }
  // Of a stage whose input has `stage` elements.
  void downsample(std::int64_t channels, std::int64_t stage, bool temporal) {
    const std::int64_t padded = channels * frames_ * (width_ + 1) * (height_ + 1);
    step(stage + map(channels) + padded);
    width_ /= 2;
    height_ /= 2;
    step(stage + padded + map(channels));
    if (!temporal || !history_) return;
    kept_ += frame(channels);
    frames_ /= 2;
  }
  void upsample(std::int64_t in, std::int64_t out, std::int64_t stage, bool temporal) {
    const std::int64_t times = temporal && history_ ? 2 : 1;
    if (times == 2) step(stage + map(in) + room(in) + 2 * map(in));
    const std::int64_t before = times * map(in);
    frames_ *= times;
    width_ *= 2;
    height_ *= 2;
    step(stage + before + map(in));
    step(stage + map(in) + map(out));
  }
  std::int64_t bytes(at::ScalarType dtype) const {
    return (most_ + kept_) * static_cast<std::int64_t>(c10::elementSize(dtype));
  }

 private:
  std::int64_t frame(std::int64_t channels) const { return channels * width_ * height_; }
  // Frames before a chunk that a convolution keeps, and its input with them in front.
  std::int64_t before_of(std::int64_t channels) const {
    return history_ ? (kKernel - 1) * frame(channels) : 0;
  }
  std::int64_t room_of(std::int64_t channels) const { return map(channels) + before_of(channels); }
  std::int64_t room(std::int64_t channels) {
    kept_ += before_of(channels);
    return room_of(channels);
  }

  std::int64_t width_, height_, frames_;  // of a map
  bool history_;                          // chunks follow each other
  std::int64_t most_ = 0, kept_ = 0;
};

}  // namespace

std::int64_t wan_vae_decode_bytes(const WanVaeConfig& c, const WanVaeClip& clip,
                                  at::ScalarType dtype) {
  const std::size_t last = c.stages() - 1;
  Pass pass(clip.width / c.spatial(), clip.height / c.spatial(), 1, clip.frames > 1);
  pass.conv(c.z_dim, c.decoder_in(0));
  pass.middle(c.decoder_in(0));
  for (std::size_t s = 0; s <= last; ++s) {
    const std::int64_t in = c.decoder_in(s), out = c.decoder_out(s);
    const std::int64_t stage = c.is_residual && s < last ? pass.map(in) : 0;
    for (std::int64_t i = 0; i <= c.num_res_blocks; ++i)
      pass.block(i == 0 ? in : out, out, stage, i == 0 && stage > 0);
    if (s < last) pass.upsample(out, c.upsampled_dim(s), stage, c.doubles_time(s));
  }
  pass.norm_conv(0, c.decoder_out(last), c.patch_channels());
  return pass.bytes(dtype);
}

std::int64_t wan_vae_encode_bytes(const WanVaeConfig& c, const WanVaeClip& clip,
                                  at::ScalarType dtype) {
  const std::size_t last = c.stages() - 1;
  const bool history = clip.frames > WanVaeConfig::kTemporal;
  Pass pass(clip.width / c.patch_size, clip.height / c.patch_size,
            history ? WanVaeConfig::kTemporal : 1, history);
  pass.conv(c.patch_channels(), c.base_dim);
  for (std::size_t s = 0; s <= last; ++s) {
    const std::int64_t in = c.encoder_in(s), out = c.encoder_dim(s);
    const std::int64_t stage = c.is_residual ? pass.map(in) : 0;
    for (std::int64_t i = 0; i < c.num_res_blocks; ++i)
      pass.block(i == 0 ? in : out, out, stage, i == 0 && stage > 0);
    if (s < last) pass.downsample(out, stage, c.halves_time(s));
  }
  pass.middle(c.encoder_dim(last));
  pass.norm_conv(0, c.encoder_dim(last), 2 * c.z_dim);
  return pass.bytes(dtype);
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
                                  at::ScalarType dtype, const WanVaeTiling& tiling) {
  return wan_vae_decode_bytes(config, largest_tile(config, clip, tiling), dtype);
}

std::int64_t wan_vae_encode_bytes(const WanVaeConfig& config, const WanVaeClip& clip,
                                  at::ScalarType dtype, const WanVaeTiling& tiling) {
  return wan_vae_encode_bytes(config, largest_tile(config, clip, tiling), dtype);
}

std::int64_t wan_vae_weight_bytes(const WanVaeConfig& c, at::ScalarType dtype) {
  std::int64_t count = 0;
  for (const TensorShape& tensor : wan_vae_layout(c)) count += c10::multiply_integers(tensor.shape);
  return count * static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace diptych

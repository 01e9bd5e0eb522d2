#include "lib/models/wan_vae/memory.h"

#include <algorithm>

namespace diptych {
namespace {

constexpr std::int64_t kPatchChannels = 3 * WanVaeConfig::kPatch * WanVaeConfig::kPatch;
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
  void upsample(std::int64_t channels, std::int64_t stage, bool temporal) {
    const std::int64_t times = temporal && history_ ? 2 : 1;
    if (times == 2) step(stage + map(channels) + room(channels) + 2 * map(channels));
    const std::int64_t before = times * map(channels);
    frames_ *= times;
    width_ *= 2;
    height_ *= 2;
    step(stage + before + map(channels));
    step(stage + 2 * map(channels));
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
  std::int64_t in = c.decoder_dim(last);
  pass.conv(c.z_dim, in);
  pass.middle(in);
  for (std::size_t s = 0; s <= last; ++s) {
    const std::int64_t out = c.decoder_dim(last - s);
    const std::int64_t stage = s == last ? 0 : pass.map(in);
    for (std::int64_t i = 0; i <= c.num_res_blocks; ++i)
      pass.block(i == 0 ? in : out, out, stage, i == 0 && stage > 0);
    if (s < last) pass.upsample(out, stage, c.temperal_downsample[last - 1 - s]);
    in = out;
  }
  pass.norm_conv(0, in, kPatchChannels);
  return pass.bytes(dtype);
}

std::int64_t wan_vae_encode_bytes(const WanVaeConfig& c, const WanVaeClip& clip,
                                  at::ScalarType dtype) {
  const std::size_t last = c.stages() - 1;
  const bool history = clip.frames > WanVaeConfig::kTemporal;
  Pass pass(clip.width / WanVaeConfig::kPatch, clip.height / WanVaeConfig::kPatch,
            history ? WanVaeConfig::kTemporal : 1, history);
  pass.conv(kPatchChannels, c.base_dim);
  std::int64_t in = c.base_dim;
  for (std::size_t s = 0; s <= last; ++s) {
    const std::int64_t out = c.encoder_dim(s), stage = pass.map(in);
    for (std::int64_t i = 0; i < c.num_res_blocks; ++i)
      pass.block(i == 0 ? in : out, out, stage, i == 0);
    if (s < last) pass.downsample(out, stage, c.temperal_downsample[s]);
    in = out;
  }
  pass.middle(in);
  pass.norm_conv(0, in, 2 * c.z_dim);
  return pass.bytes(dtype);
}

namespace {

// Numbers of weights, as WanVae::load asks for them.
std::int64_t conv_weights(std::int64_t out, std::int64_t in, std::int64_t taps) {
  return out * in * taps + out;
}

std::int64_t block_weights(std::int64_t in, std::int64_t out) {
  return in + conv_weights(out, in, 27) + out + conv_weights(out, out, 27) +
         (in == out ? 0 : conv_weights(out, in, 1));
}

std::int64_t blocks_weights(std::int64_t in, std::int64_t out, std::int64_t count) {
  return block_weights(in, out) + (count - 1) * block_weights(out, out);
}

std::int64_t middle_weights(std::int64_t channels) {
  return 2 * block_weights(channels, channels) + channels +
         conv_weights(3 * channels, channels, 1) + conv_weights(channels, channels, 1);
}

}  // namespace

std::int64_t wan_vae_weight_bytes(const WanVaeConfig& c, at::ScalarType dtype) {
  const std::size_t last = c.stages() - 1;
  const std::int64_t z = c.z_dim, inner = c.encoder_dim(last), outer = c.decoder_dim(last);
  std::int64_t count = conv_weights(2 * z, 2 * z, 1) + conv_weights(z, z, 1) +
                       conv_weights(c.base_dim, kPatchChannels, 27) + middle_weights(inner) +
                       inner + conv_weights(2 * z, inner, 27) + conv_weights(outer, z, 27) +
                       middle_weights(outer) + c.decoder_dim(0) +
                       conv_weights(kPatchChannels, c.decoder_dim(0), 27);
  for (std::size_t s = 0; s <= last; ++s) {
    const std::int64_t down = c.encoder_dim(s), up = c.decoder_dim(last - s);
    count += blocks_weights(s == 0 ? c.base_dim : c.encoder_dim(s - 1), down, c.num_res_blocks);
    count += blocks_weights(s == 0 ? outer : c.decoder_dim(last - s + 1), up, c.num_res_blocks + 1);
    if (s == last) break;
    const bool halves = c.temperal_downsample[s], doubles = c.temperal_downsample[last - 1 - s];
    count += conv_weights(down, down, 9) + (halves ? conv_weights(down, down, 3) : 0);
    count += conv_weights(up, up, 9) + (doubles ? conv_weights(2 * up, up, 3) : 0);
  }
  return count * static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace diptych

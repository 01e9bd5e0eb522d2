#include "lib/models/flux_vae/memory.h"

#include <algorithm>

namespace diptych {
namespace {

constexpr std::int64_t kFloat = 4;

// Where a pass stands. Each member gives the bytes held while a step runs, its input and output
// included.
struct Steps {
  const std::optional<VaeStrips>& strips;
  std::int64_t width = 0, height = 0;  // of the step's input

  std::int64_t map(std::int64_t channels) const { return channels * width * height * kFloat; }
  // The slab, the result and the copies of a strip, where a row of both takes `row` bytes; of the
  // whole map where that is less.
  std::int64_t strip(std::int64_t row) const {
    return 3 * std::min(std::max(strips->max_bytes, 4 * row), (height + 2) * row);
  }
  std::int64_t row(std::int64_t channels) const { return channels * width * kFloat; }

  std::int64_t block(std::int64_t in, std::int64_t out) const {
    if (strips) return map(in) + map(out) + strip(row(in + out));
    return map(in) + std::max(map(in) + map(out), 2 * map(out));
  }
  std::int64_t attention(std::int64_t channels) const {
    // Input, norm, q, k, v, attended (as parts and whole), its copy, projection and sum.
    // Logits and probabilities, where they are written out.
    const std::int64_t pixels = width * height;
    const std::int64_t most = strips ? 4 * strips->max_bytes : VaeAttention::kLogitBytes;
    const std::int64_t logits = 2 * std::min(most, pixels * pixels * kFloat);
    return (strips ? 10 : 9) * map(channels) + logits;
  }
  std::int64_t mid(std::int64_t channels) const {
    return std::max(block(channels, channels), attention(channels));
  }
  std::int64_t upsample(std::int64_t channels) const {
    if (strips) return 5 * map(channels) + strip(4 * row(2 * channels));
    return 8 * map(channels);
  }
  std::int64_t downsample(std::int64_t channels) const {
    const std::int64_t out = map(channels) / 4;
    if (strips) return map(channels) + out + strip(row(3 * channels));
    return 2 * map(channels) + row(channels) + map(channels) / height;
  }
  std::int64_t out(std::int64_t in, std::int64_t channels) const {
    if (strips) return map(in) + map(channels) + strip(row(in + channels));
    return 2 * map(in) + map(channels);
  }
};

std::int64_t level_width(const FluxVaeConfig& config, std::size_t level) {
  return config.ch * config.ch_mult[level];
}

}  // namespace

std::int64_t vae_decode_bytes(const FluxVaeConfig& c, std::int64_t width, std::int64_t height,
                              const std::optional<VaeStrips>& strips) {
  const std::size_t levels = c.ch_mult.size();
  Steps steps{strips, width / c.downsample(), height / c.downsample()};
  std::int64_t channels = level_width(c, levels - 1);
  std::int64_t most = steps.mid(channels);
  for (std::size_t i = levels; i-- > 0;) {
    most = std::max({most, steps.block(channels, level_width(c, i)),
                     steps.block(level_width(c, i), level_width(c, i))});
    channels = level_width(c, i);
    if (i == 0) break;
    most = std::max(most, steps.upsample(channels));
    steps.width *= 2;
    steps.height *= 2;
  }
  return std::max(most, steps.out(channels, 3));
}

std::int64_t vae_encode_bytes(const FluxVaeConfig& c, std::int64_t width, std::int64_t height,
                              const std::optional<VaeStrips>& strips) {
  const std::size_t levels = c.ch_mult.size();
  Steps steps{strips, width, height};
  std::int64_t channels = c.ch;
  std::int64_t most = steps.map(3) + steps.map(channels);
  for (std::size_t i = 0; i < levels; ++i) {
    most = std::max({most, steps.block(channels, level_width(c, i)),
                     steps.block(level_width(c, i), level_width(c, i))});
    channels = level_width(c, i);
    if (i + 1 == levels) break;
    most = std::max(most, steps.downsample(channels));
    steps.width /= 2;
    steps.height /= 2;
  }
  most = std::max({most, steps.mid(channels), steps.out(channels, 2 * c.z_channels)});
  return most + width * height * 3 * kFloat;  // the picture itself
}

namespace {

// Numbers of weights, as FluxVae::load asks for them.
std::int64_t conv_weights(std::int64_t out, std::int64_t in, std::int64_t kernel) {
  return out * in * kernel * kernel + out;
}

std::int64_t block_weights(std::int64_t in, std::int64_t out) {
  return 2 * in + conv_weights(out, in, 3) + 2 * out + conv_weights(out, out, 3) +
         (in == out ? 0 : conv_weights(out, in, 1));
}

std::int64_t mid_weights(std::int64_t channels) {
  return 2 * block_weights(channels, channels) + 2 * channels +
         4 * conv_weights(channels, channels, 1);
}

}  // namespace

std::int64_t vae_weight_bytes(const FluxVaeConfig& c) {
  const std::size_t levels = c.ch_mult.size();
  const std::int64_t widest = level_width(c, levels - 1);
  std::int64_t count = conv_weights(c.ch, 3, 3) + 2 * mid_weights(widest) + 2 * widest +
                       conv_weights(2 * c.z_channels, widest, 3) +
                       conv_weights(widest, c.z_channels, 3) + 2 * c.ch * c.ch_mult.front() +
                       conv_weights(3, level_width(c, 0), 3);
  for (std::size_t i = 0; i < levels; ++i) {
    const std::int64_t out = level_width(c, i);
    const std::int64_t down_in = i == 0 ? c.ch : level_width(c, i - 1);
    const std::int64_t up_in = i + 1 < levels ? level_width(c, i + 1) : widest;
    count += block_weights(down_in, out) + (c.num_res_blocks - 1) * block_weights(out, out) +
             block_weights(up_in, out) + c.num_res_blocks * block_weights(out, out);
    if (i + 1 < levels) count += conv_weights(out, out, 3);  // downsample
    if (i > 0) count += conv_weights(out, out, 3);           // upsample
  }
  return count * kFloat;
}

}  // namespace diptych

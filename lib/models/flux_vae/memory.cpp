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
  // The slab, the result and the copies of a strip, where a row of both takes `row` bytes.
  std::int64_t strip(std::int64_t row) const { return 3 * std::max(strips->max_bytes, 4 * row); }
  std::int64_t row(std::int64_t channels) const { return channels * width * kFloat; }

  std::int64_t block(std::int64_t in, std::int64_t out) const {
    if (strips) return map(in) + map(out) + strip(row(in + out));
    return map(in) + std::max(map(in) + map(out), 2 * map(out));
  }
  std::int64_t attention(std::int64_t channels) const {
    // Input, norm, q, k, v, attended (as parts and whole), its copy, projection and sum.
    const std::int64_t logits = strips ? 2 * 4 * strips->max_bytes : 0;
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

}  // namespace diptych

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/group_norm_silu/group_norm_silu.h"

namespace diptych::kernels {
namespace {

// To 10 bits of fraction; a NaN and an infinity stay what they are.
float to_tf32(float value) {
  if (!std::isfinite(value)) return value;
  constexpr std::uint32_t kHalf = 0x1000u, kDropped = 0x1fffu;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + kHalf) & ~kDropped);
}

// Calls body(value) for every value of a sample's channels from `first` on.
template <typename Body>
void for_group(const GroupNormTableArgs& args, std::int64_t sample, std::int64_t first,
               std::int64_t count, const Body& body) {
  const float* x = args.x + sample * args.sample_stride;
  for (std::int64_t pixel = 0; pixel < args.pixels; ++pixel) {
    for (std::int64_t c = first; c < first + count; ++c) {
      body(static_cast<double>(x[pixel * args.channels + c]));
    }
  }
}

std::int64_t divided_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

std::int64_t group_norm_chunk_pixels(std::int64_t pixels, std::int64_t channels) {
  const std::int64_t vectors = divided_up(channels, 4);  // of 16 bytes
  const std::int64_t rows = std::max<std::int64_t>(kGroupNormThreads / vectors, 1);
  const std::int64_t fair = divided_up(pixels, kMaxChunks);
  return std::max(rows * kGroupNormDepth, divided_up(fair, rows) * rows);
}

std::int64_t group_norm_chunks(std::int64_t pixels, std::int64_t channels) {
  return divided_up(pixels, group_norm_chunk_pixels(pixels, channels));
}

void group_norm_table_ref(const GroupNormTableArgs& args) {
  const std::int64_t width = args.channels / args.groups;
  const auto count = static_cast<double>(args.pixels * width);
  for (std::int64_t sample = 0; sample < args.samples; ++sample) {
    float* factors = args.table + sample * 2 * args.channels;
    float* offsets = factors + args.channels;
    for (std::int64_t first = 0; first < args.channels; first += width) {
      double sum = 0, squares = 0;
      for_group(args, sample, first, width, [&](double value) { sum += value; });
      const double mean = sum / count;
      for_group(args, sample, first, width,
                [&](double value) { squares += (value - mean) * (value - mean); });
      const double inverse = 1 / std::sqrt(squares / count + static_cast<double>(args.eps));
      for (std::int64_t c = first; c < first + width; ++c) {
        const double factor = inverse * static_cast<double>(args.weight[c]);
        factors[c] = static_cast<float>(factor);
        offsets[c] = static_cast<float>(static_cast<double>(args.bias[c]) - mean * factor);
      }
    }
  }
}

void group_norm_silu_ref(const GroupNormSiluArgs& args) {
  for (std::int64_t sample = 0; sample < args.samples; ++sample) {
    const float* factors = args.table + sample * 2 * args.channels;
    const float* offsets = factors + args.channels;
    const float* x = args.x + sample * args.x_sample_stride;
    float* y = args.y + sample * args.y_sample_stride;
    for (std::int64_t i = 0; i < args.pixels * args.channels; ++i) {
      const std::int64_t c = i % args.channels;
      float value = std::fma(x[i], factors[c], offsets[c]);
      if (args.silu) value = value / (1 + std::exp(-value));
      y[i] = args.round_to_tf32 ? to_tf32(value) : value;
    }
  }
}

}  // namespace diptych::kernels

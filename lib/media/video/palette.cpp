#include "lib/media/video/palette.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_map>

namespace diptych {
namespace {

constexpr std::size_t kMaxColors = 256;
constexpr int kBinBits = 5;  // of each channel, of the colours that are counted
constexpr int kSettlingRounds = 3;
constexpr double kStillFits = 1.15;  // of the squared error that a palette of its own has

using Point = std::array<double, 3>;

// Colours that share their upper bits: how many pixels, and their mean.
struct Bin {
  double count = 0;
  Point color{};
};

std::uint32_t packed(const std::uint8_t* rgb) {
  return static_cast<std::uint32_t>(rgb[0] << 16 | rgb[1] << 8 | rgb[2]);
}

// Every colour where there are no more than 256.
std::optional<std::unordered_map<std::uint32_t, std::uint8_t>> few_colors(
    std::span<const std::uint8_t> rgb) {
  std::unordered_map<std::uint32_t, std::uint8_t> colors;
  std::uint32_t last = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t i = 0; i < rgb.size(); i += 3) {
    const std::uint32_t color = packed(&rgb[i]);
    if (color == last) continue;
    last = color;
    if (colors.size() == kMaxColors && !colors.contains(color)) return std::nullopt;
    colors.try_emplace(color, static_cast<std::uint8_t>(colors.size()));
  }
  return colors;
}

std::vector<Bin> count_colors(std::span<const std::uint8_t> rgb) {
  constexpr int kDrop = 8 - kBinBits;
  std::vector<Bin> bins(std::size_t{1} << (3 * kBinBits));
  for (std::size_t i = 0; i < rgb.size(); i += 3) {
    const std::size_t at = static_cast<std::size_t>(rgb[i] >> kDrop) << (2 * kBinBits) |
                           static_cast<std::size_t>(rgb[i + 1] >> kDrop) << kBinBits |
                           static_cast<std::size_t>(rgb[i + 2] >> kDrop);
    ++bins[at].count;
    for (std::size_t c = 0; c < 3; ++c) bins[at].color[c] += rgb[i + c];
  }
  std::erase_if(bins, [](const Bin& bin) { return bin.count == 0; });
  for (Bin& bin : bins) {
    for (double& level : bin.color) level /= bin.count;
  }
  return bins;
}

// A range of bins, and how far they are from their mean.
struct Box {
  std::span<Bin> bins;
  Point mean{};
  std::size_t axis = 0;  // along which the squared error is largest
  double error = 0;      // that

  explicit Box(std::span<Bin> all) : bins(all) {
    double count = 0;
    Point square{};
    for (const Bin& bin : bins) {
      count += bin.count;
      for (std::size_t c = 0; c < 3; ++c) mean[c] += bin.count * bin.color[c];
    }
    for (double& level : mean) level /= count;
    for (const Bin& bin : bins) {
      for (std::size_t c = 0; c < 3; ++c) {
        const double gap = bin.color[c] - mean[c];
        square[c] += bin.count * gap * gap;
      }
    }
    axis = static_cast<std::size_t>(std::ranges::max_element(square) - square.begin());
    error = bins.size() > 1 ? square[axis] : 0;
  }
};

std::vector<Point> split_colors(std::vector<Bin>& bins) {
  std::vector<Box> boxes{Box(bins)};
  while (boxes.size() < kMaxColors) {
    const auto worst = std::ranges::max_element(boxes, {}, &Box::error);
    if (worst->error <= 0) break;
    const auto [all, mean, axis, error] = *worst;
    const auto upper =
        std::partition(all.begin(), all.end(),
                       [&, a = axis, m = mean[axis]](const Bin& bin) { return bin.color[a] < m; });
    const auto lower = static_cast<std::size_t>(upper - all.begin());
    if (lower == 0 || lower == all.size()) {  // apart by less than rounding
      worst->error = 0;
      continue;
    }
    *worst = Box(all.first(lower));
    boxes.emplace_back(all.subspan(lower));
  }
  std::vector<Point> means;
  for (const Box& box : boxes) means.push_back(box.mean);
  return means;
}

double distance(const Point& a, const Point& b) {
  double sum = 0;
  for (std::size_t c = 0; c < 3; ++c) sum += (a[c] - b[c]) * (a[c] - b[c]);
  return sum;
}

std::size_t nearest(const std::vector<Point>& colors, const Point& color) {
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < colors.size(); ++i) {
    const double gap = distance(colors[i], color);
    if (gap < least) {
      least = gap;
      best = i;
    }
  }
  return best;
}

void settle(std::vector<Point>& colors, const std::vector<Bin>& bins) {
  std::vector<Bin> sums(colors.size());
  for (const Bin& bin : bins) {
    Bin& sum = sums[nearest(colors, bin.color)];
    sum.count += bin.count;
    for (std::size_t c = 0; c < 3; ++c) sum.color[c] += bin.count * bin.color[c];
  }
  for (std::size_t i = 0; i < colors.size(); ++i) {
    for (std::size_t c = 0; c < 3 && sums[i].count > 0; ++c)
      colors[i][c] = sums[i].color[c] / sums[i].count;
  }
}

Palette rounded(const std::vector<Point>& colors) {
  Palette palette;
  for (const Point& color : colors) {
    PaletteColor& stored = palette.emplace_back();
    for (std::size_t c = 0; c < 3; ++c) stored[c] = static_cast<std::uint8_t>(color[c] + 0.5);
  }
  return palette;
}

std::vector<Point> points(const Palette& palette) {
  std::vector<Point> all;
  for (const PaletteColor& color : palette)
    all.push_back({static_cast<double>(color[0]), static_cast<double>(color[1]),
                   static_cast<double>(color[2])});
  return all;
}

double squared_error(const std::vector<Point>& colors, const std::vector<Bin>& bins) {
  double sum = 0;
  for (const Bin& bin : bins)
    sum += bin.count * distance(colors[nearest(colors, bin.color)], bin.color);
  return sum;
}

// The nearest colour of a palette, remembered for colours that share their upper six bits.
class Nearest {
 public:
  explicit Nearest(const Palette& palette)
      : colors_(points(palette)), known_(std::size_t{1} << 18, -1) {}

  std::uint8_t of(const std::array<int, 3>& color) {
    constexpr int kDrop = 2, kHalf = 2;
    std::int16_t& index = known_[static_cast<std::size_t>(
        (color[0] >> kDrop) << 12 | (color[1] >> kDrop) << 6 | color[2] >> kDrop)];
    if (index < 0) {
      Point middle;
      for (std::size_t c = 0; c < 3; ++c)
        middle[c] = static_cast<double>((color[c] >> kDrop << kDrop) + kHalf) - 0.5;
      index = static_cast<std::int16_t>(nearest(colors_, middle));
    }
    return static_cast<std::uint8_t>(index);
  }

 private:
  std::vector<Point> colors_;
  std::vector<std::int16_t> known_;
};

// Floyd and Steinberg 1976: 7/16 to the next pixel, 3, 5 and 1 to those of the next row.
std::vector<std::uint8_t> dither(std::span<const std::uint8_t> rgb, std::size_t height,
                                 std::size_t width, const Palette& palette) {
  constexpr int kParts = 16;
  Nearest colors(palette);
  std::vector<std::uint8_t> indices(height * width);
  std::vector<int> here((width + 2) * 3), below((width + 2) * 3);  // sixteenths; a pixel aside each
  for (std::size_t y = 0; y < height; ++y) {
    std::ranges::fill(below, 0);
    const bool backwards = y % 2 == 1;
    for (std::size_t step = 0; step < width; ++step) {
      const std::size_t x = backwards ? width - 1 - step : step, at = y * width + x;
      const std::size_t own = (x + 1) * 3, ahead = backwards ? own - 3 : own + 3,
                        behind = backwards ? own + 3 : own - 3;
      std::array<int, 3> wanted;
      for (std::size_t c = 0; c < 3; ++c)
        wanted[c] = std::clamp(rgb[at * 3 + c] + here[own + c] / kParts, 0, 255);
      indices[at] = colors.of(wanted);
      for (std::size_t c = 0; c < 3; ++c) {
        const int error = wanted[c] - palette[indices[at]][c];
        here[ahead + c] += error * 7;
        below[behind + c] += error * 3;
        below[own + c] += error * 5;
        below[ahead + c] += error;
      }
    }
    std::swap(here, below);
  }
  return indices;
}

}  // namespace

Quantizer::Indexed Quantizer::reduce(std::span<const std::uint8_t> rgb, std::size_t height,
                                     std::size_t width) {
  if (const auto colors = few_colors(rgb)) {
    palette_.assign(colors->size(), {});
    for (const auto& [color, index] : *colors) {
      palette_[index] = {static_cast<std::uint8_t>(color >> 16),
                         static_cast<std::uint8_t>(color >> 8), static_cast<std::uint8_t>(color)};
    }
    exact_ = true;
    Indexed frame{&palette_, std::vector<std::uint8_t>(height * width)};
    for (std::size_t i = 0; i < frame.indices.size(); ++i)
      frame.indices[i] = colors->at(packed(&rgb[i * 3]));
    return frame;
  }
  std::vector<Bin> bins = count_colors(rgb);
  std::vector<Point> colors = split_colors(bins);
  for (int round = 0; round < kSettlingRounds; ++round) settle(colors, bins);
  const bool stays =
      !palette_.empty() && !exact_ &&
      squared_error(points(palette_), bins) <= kStillFits * squared_error(colors, bins);
  if (!stays) palette_ = rounded(colors);
  exact_ = false;
  return {&palette_, dither(rgb, height, width, palette_)};
}

}  // namespace diptych

// After python-pillow/Pillow, src/libImaging/Resample.c (precompute_coeffs, normalize_coeffs_8bpc,
// _ImagingResampleHorizontal_8bpc, _ImagingResampleVertical_8bpc, ImagingResampleInner), release
// 13.0.0.
#include "lib/media/resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace diptych {
namespace {

constexpr int kFractionBits = 22;  // of a weight; 8 bits of a sample and 2 to spare make 32
constexpr std::int32_t kHalf = 1 << (kFractionBits - 1);
constexpr std::int64_t kChannels = 3;

double bicubic(double x) {  // Keys' kernel, a = -0.5
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double lanczos(double x) {  // three lobes
  constexpr double lobes = 3.0;
  const auto sinc = [](double at) {
    if (at == 0.0) return 1.0;
    at *= std::numbers::pi;
    return std::sin(at) / at;
  };
  return -lobes <= x && x < lobes ? sinc(x) * sinc(x / lobes) : 0.0;
}

struct Kernel {
  double (*at)(double x);
  double support;  // samples on either side
};
constexpr Kernel kBicubic = {bicubic, 2.0}, kLanczos = {lanczos, 3.0};

// What one output sample is made of: input samples first .. first + count - 1.
struct Taps {
  std::int64_t first, count;
  std::int64_t weights;  // where in Filter::weights its weights begin
};

struct Filter {
  std::vector<Taps> taps;  // one for each output sample
  std::vector<std::int32_t> weights;
};

void append_fixed_point(std::span<const double> weights, std::vector<std::int32_t>& out) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  for (const double weight : weights) {
    const double scaled = (sum != 0 ? weight / sum : weight) * (1 << kFractionBits);
    out.push_back(static_cast<std::int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5));
  }
}

Filter make_filter(std::int64_t in, std::int64_t out, const Kernel& kernel) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double filter_scale = std::max(scale, 1.0), inverse = 1.0 / filter_scale;
  const double support = kernel.support * filter_scale;
  Filter filter;
  std::vector<double> weights;
  for (std::int64_t x = 0; x < out; ++x) {
    const double center = (static_cast<double>(x) + 0.5) * scale;
    const auto first = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
    const auto end = std::min(in, static_cast<std::int64_t>(center + support + 0.5));
    weights.clear();
    for (std::int64_t i = first; i < end; ++i) {
      weights.push_back(kernel.at((static_cast<double>(i) - center + 0.5) * inverse));
    }
    filter.taps.push_back({first, end - first, static_cast<std::int64_t>(filter.weights.size())});
    append_fixed_point(weights, filter.weights);
  }
  return filter;
}

std::uint8_t to_sample(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
}

Tensor resize_width(const Tensor& image, std::int64_t width, const Kernel& kernel) {
  const Filter filter = make_filter(image.size(1), width, kernel);
  const Tensor out = at::empty({image.size(0), width, kChannels}, at::kByte);
  const auto* in_row = image.const_data_ptr<std::uint8_t>();
  auto* to = out.data_ptr<std::uint8_t>();
  for (std::int64_t y = 0; y < image.size(0); ++y, in_row += image.size(1) * kChannels) {
    for (const Taps& taps : filter.taps) {
      const std::uint8_t* in = in_row + taps.first * kChannels;
      const std::int32_t* weights = filter.weights.data() + taps.weights;
      std::int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (std::int64_t i = 0; i < taps.count; ++i, in += kChannels) {
        red += in[0] * weights[i];
        green += in[1] * weights[i];
        blue += in[2] * weights[i];
      }
      *to++ = to_sample(red);
      *to++ = to_sample(green);
      *to++ = to_sample(blue);
    }
  }
  return out;
}

Tensor resize_height(const Tensor& image, std::int64_t height, const Kernel& kernel) {
  const Filter filter = make_filter(image.size(0), height, kernel);
  const std::int64_t row_samples = image.size(1) * kChannels;
  const Tensor out = at::empty({height, image.size(1), kChannels}, at::kByte);
  const auto* in = image.const_data_ptr<std::uint8_t>();
  auto* to = out.data_ptr<std::uint8_t>();
  std::vector<std::int32_t> sums(static_cast<std::size_t>(row_samples));
  for (const Taps& taps : filter.taps) {
    std::fill(sums.begin(), sums.end(), kHalf);
    for (std::int64_t i = 0; i < taps.count; ++i) {
      const std::uint8_t* row = in + (taps.first + i) * row_samples;
      const std::int32_t weight = filter.weights[static_cast<std::size_t>(taps.weights + i)];
      for (std::size_t x = 0; x < sums.size(); ++x) sums[x] += row[x] * weight;
    }
    to = std::transform(sums.begin(), sums.end(), to, to_sample);
  }
  return out;
}

Tensor resize(const Tensor& image, std::int64_t height, std::int64_t width, const Kernel& kernel) {
  TORCH_CHECK(image.dim() == 3 && image.size(2) == kChannels && image.scalar_type() == at::kByte &&
                  image.device().is_cpu() && image.numel() > 0,
              "[resize] expected uint8 [height, width, 3] on the CPU, got ", image.scalar_type(),
              " ", image.sizes(), " ", image.device());
  TORCH_CHECK(height > 0 && width > 0, "[resize] to ", height, "x", width);
  const std::int64_t fewer_rows = image.size(0) - height, fewer_columns = image.size(1) - width;
  // The sums are rounded to 8 bits in between, so the order counts. Pillow before 13 has no
  // exception for tall pictures.
  const bool height_first = fewer_rows > 0 && fewer_rows > 2 * fewer_columns;
  Tensor out = image.contiguous();
  if (height_first) out = resize_height(out, height, kernel);
  if (fewer_columns != 0) out = resize_width(out, width, kernel);
  if (!height_first && fewer_rows != 0) out = resize_height(out, height, kernel);
  return out.is_same(image) ? image.clone() : out;
}

}  // namespace

Tensor resize_bicubic(const Tensor& image, std::int64_t height, std::int64_t width) {
  return resize(image, height, width, kBicubic);
}

Tensor resize_lanczos(const Tensor& image, std::int64_t height, std::int64_t width) {
  return resize(image, height, width, kLanczos);
}

}  // namespace diptych

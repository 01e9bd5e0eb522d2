#include "lib/verify/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>

#include "lib/base/error.h"
#include "lib/verify/ssim.h"

namespace diptych {
namespace {

constexpr std::int64_t kWindow = kSsimWindow;
constexpr double kDataRange = 255;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_pictures(const Tensor& actual, const Tensor& expected) {
  TORCH_CHECK(actual.dim() == 3 && actual.size(2) == 3 && actual.scalar_type() == at::kByte &&
                  expected.scalar_type() == at::kByte && actual.sizes() == expected.sizes(),
              "[metrics] expected two uint8 pictures [height, width, 3] of one size, got ",
              actual.sizes(), " and ", expected.sizes());
}

// Means over the positions of the window.
struct Similarity {
  double ssim = 0, contrast = 0;
};

// x, y: double [height, width], contiguous. Bands of a fixed size, so that the sums are those of
// any number of threads.
Similarity similarity(const Tensor& x, const Tensor& y) {
  constexpr std::int64_t kBand = 64;
  const std::int64_t rows = x.size(0) - kWindow + 1, columns = x.size(1) - kWindow + 1;
  std::vector<SsimSums> bands(static_cast<std::size_t>((rows + kBand - 1) / kBand));
  at::parallel_for(
      0, static_cast<std::int64_t>(bands.size()), 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t band = first; band < last; ++band) {
          bands[static_cast<std::size_t>(band)] =
              ssim_rows(x.const_data_ptr<double>(), y.const_data_ptr<double>(),
                        static_cast<std::size_t>(x.size(1)), static_cast<std::size_t>(band * kBand),
                        static_cast<std::size_t>(std::min((band + 1) * kBand, rows)));
        }
      });
  Similarity mean;
  for (const SsimSums& band : bands) {
    mean.ssim += band.ssim;
    mean.contrast += band.contrast;
  }
  const double positions = static_cast<double>(rows * columns);
  return {mean.ssim / positions, mean.contrast / positions};
}

// [height, width] -> half of both, rounded up.
Tensor half_size(const Tensor& plane) {
  Tensor half = plane;
  for (const std::int64_t dim : {0, 1}) {
    const std::int64_t side = half.size(dim);
    if (side % 2 != 0) half = at::cat({half, half.narrow(dim, side - 1, 1)}, dim);
    half = (half.slice(dim, 0, {}, 2) + half.slice(dim, 1, {}, 2)) / 2;
  }
  return half.contiguous();
}

Tensor plane_of(const Tensor& picture, std::int64_t channel) {
  return picture.select(2, channel).to(at::kCPU).to(at::kDouble).contiguous();
}

struct Similarities {
  double ssim = 0, ms_ssim = 0;
};

constexpr std::array kScaleWeights = {0.0448, 0.2856, 0.3001, 0.2363, 0.1333};

std::size_t scales_of(const Tensor& picture) {
  std::int64_t side = std::min(picture.size(0), picture.size(1));
  std::size_t scales = 1;
  for (side = (side + 1) / 2; side >= kWindow && scales < kScaleWeights.size();
       side = (side + 1) / 2)
    ++scales;
  return scales;
}

// `scales`: how many; with one alone both are SSIM.
Similarities similarities(const Tensor& actual, const Tensor& expected, std::size_t scales) {
  double total = 0;
  for (std::size_t i = 0; i < scales; ++i) total += kScaleWeights[i];
  Similarities sum;
  for (std::int64_t channel = 0; channel < 3; ++channel) {
    Tensor x = plane_of(actual, channel), y = plane_of(expected, channel);
    double product = 1;
    for (std::size_t i = 0; i < scales; ++i) {
      const Similarity found = similarity(x, y);
      if (i == 0) sum.ssim += found.ssim / 3;
      const bool last = i + 1 == scales;
      const double factor = std::max(last ? found.ssim : found.contrast, 0.0);
      product *= std::pow(factor, kScaleWeights[i] / total);
      if (last) break;
      x = half_size(x);
      y = half_size(y);
    }
    sum.ms_ssim += product / 3;
  }
  if (scales == 1) sum.ms_ssim = sum.ssim;
  return sum;
}

void require_window(const Tensor& picture, std::string_view what) {
  if (picture.size(0) >= kWindow && picture.size(1) >= kWindow) return;
  throw InputError("{} needs pictures of at least {}x{} pixels, these are {}x{}", what, kWindow,
                   kWindow, picture.size(1), picture.size(0));
}

Tensor as_double(const Tensor& tensor) {
  return tensor.to(at::kCPU).to(at::kDouble).flatten();
}

// Exactly 1 of equal tensors, and never beyond: rounding must not fail a gate of 1.
double cosine(const Tensor& a, const Tensor& b) {
  if (at::equal(a, b)) return 1;
  const double norm_a = a.norm().item<double>(), norm_b = b.norm().item<double>();
  if (norm_a == 0 && norm_b == 0) return 1;
  if (norm_a == 0 || norm_b == 0) return 0;
  const double found = (a / norm_a).dot(b / norm_b).item<double>();
  return std::isnan(found) ? found : std::clamp(found, -1.0, 1.0);
}

}  // namespace

Difference difference(const Tensor& actual, const Tensor& expected) {
  TORCH_CHECK(actual.sizes() == expected.sizes(), "[difference] shapes ", actual.sizes(), " and ",
              expected.sizes());
  if (actual.numel() == 0) return {};
  const Tensor a = as_double(actual), b = as_double(expected);  // [elements]
  const Tensor gap = at::where(a == b, 0.0, (a - b).abs());
  Difference result;
  result.max_abs = gap.max().item<double>();  // torch's max is NaN where any element is
  result.mean_abs = gap.mean().item<double>();
  const double largest = b.abs().max().item<double>();
  if (std::isnan(result.max_abs) || result.max_abs != 0) {
    result.relative = largest == 0 ? kInfinity : result.max_abs / largest;
    const double norm = b.norm().item<double>();
    result.relative_norm = norm == 0 ? kInfinity : gap.norm().item<double>() / norm;
  }
  result.cosine = cosine(a, b);
  return result;
}

double ssim(const Tensor& actual, const Tensor& expected) {
  check_pictures(actual, expected);
  require_window(actual, "SSIM");
  return similarities(actual, expected, 1).ssim;
}

double ms_ssim(const Tensor& actual, const Tensor& expected) {
  check_pictures(actual, expected);
  require_window(actual, "MS-SSIM");
  return similarities(actual, expected, scales_of(actual)).ms_ssim;
}

double psnr(const Tensor& actual, const Tensor& expected) {
  check_pictures(actual, expected);
  const Tensor gap = as_double(actual) - as_double(expected);
  const double mean_square = (gap * gap).mean().item<double>();
  return mean_square == 0 ? kInfinity : 10 * std::log10(kDataRange * kDataRange / mean_square);
}

ImageMetrics image_metrics(const Tensor& actual, const Tensor& expected) {
  ImageMetrics metrics;
  metrics.psnr = psnr(actual, expected);
  metrics.difference = difference(actual, expected);
  if (actual.size(0) < kWindow || actual.size(1) < kWindow) return metrics;
  const Similarities found = similarities(actual, expected, scales_of(actual));
  metrics.ssim = found.ssim;
  metrics.ms_ssim = found.ms_ssim;
  return metrics;
}

Tensor difference_picture(const Tensor& actual, const Tensor& expected) {
  check_pictures(actual, expected);
  const Tensor gap = (actual.to(at::kInt) - expected.to(at::kInt)).abs();
  return (gap * kDifferenceGain).clamp(0, 255).to(at::kByte);
}

}  // namespace diptych

#include "lib/verify/metrics.h"

#include <array>
#include <cmath>
#include <limits>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr std::int64_t kWindow = 11;
constexpr double kSigma = 1.5;
constexpr double kDataRange = 255;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_pictures(const Tensor& actual, const Tensor& expected) {
  TORCH_CHECK(actual.dim() == 3 && actual.size(2) == 3 && actual.scalar_type() == at::kByte &&
                  expected.scalar_type() == at::kByte && actual.sizes() == expected.sizes(),
              "[metrics] expected two uint8 pictures [height, width, 3] of one size, got ",
              actual.sizes(), " and ", expected.sizes());
}

std::array<double, kWindow> gaussian() {
  std::array<double, kWindow> weights{};
  double sum = 0;
  for (std::int64_t i = 0; i < kWindow; ++i) {
    const double distance = static_cast<double>(i - kWindow / 2) / kSigma;
    sum += weights[static_cast<std::size_t>(i)] = std::exp(-0.5 * distance * distance);
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// [height, width] -> [height - 10, width - 10]: only where the whole window lies inside.
Tensor blur(const Tensor& x) {
  static const auto kWeights = gaussian();
  Tensor out = x;
  for (const std::int64_t dim : {0, 1}) {
    const Tensor in = out;
    const std::int64_t length = in.size(dim) - kWindow + 1;
    out = in.narrow(dim, 0, length) * kWeights[0];
    for (std::int64_t i = 1; i < kWindow; ++i) {
      out.add_(in.narrow(dim, i, length), kWeights[static_cast<std::size_t>(i)]);
    }
  }
  return out;
}

double channel_ssim(const Tensor& x, const Tensor& y) {  // [height, width], double
  constexpr double kC1 = (0.01 * kDataRange) * (0.01 * kDataRange);
  constexpr double kC2 = (0.03 * kDataRange) * (0.03 * kDataRange);
  const Tensor mean_x = blur(x), mean_y = blur(y);
  const Tensor variance_x = blur(x * x) - mean_x * mean_x;
  const Tensor variance_y = blur(y * y) - mean_y * mean_y;
  const Tensor covariance = blur(x * y) - mean_x * mean_y;
  const Tensor upper = (2 * mean_x * mean_y + kC1) * (2 * covariance + kC2);
  const Tensor lower = (mean_x * mean_x + mean_y * mean_y + kC1) * (variance_x + variance_y + kC2);
  return (upper / lower).mean().item<double>();
}

Tensor as_double(const Tensor& tensor) {
  return tensor.to(at::kCPU).to(at::kDouble).flatten();
}

double cosine(const Tensor& a, const Tensor& b) {
  const double norm_a = a.norm().item<double>(), norm_b = b.norm().item<double>();
  if (norm_a == 0 && norm_b == 0) return 1;
  if (norm_a == 0 || norm_b == 0) return 0;
  return (a / norm_a).dot(b / norm_b).item<double>();
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
  if (actual.size(0) < kWindow || actual.size(1) < kWindow) {
    throw InputError("SSIM needs pictures of at least {0}x{0} pixels, these are {1}x{2}", kWindow,
                     actual.size(1), actual.size(0));
  }
  double sum = 0;
  for (std::int64_t channel = 0; channel < 3; ++channel) {
    const auto plane = [&](const Tensor& picture) {
      return picture.select(2, channel).to(at::kCPU).to(at::kDouble).contiguous();
    };
    sum += channel_ssim(plane(actual), plane(expected));
  }
  return sum / 3;
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
  if (actual.size(0) >= kWindow && actual.size(1) >= kWindow) metrics.ssim = ssim(actual, expected);
  return metrics;
}

Tensor difference_picture(const Tensor& actual, const Tensor& expected) {
  check_pictures(actual, expected);
  const Tensor gap = (actual.to(at::kInt) - expected.to(at::kInt)).abs();
  return (gap * kDifferenceGain).clamp(0, 255).to(at::kByte);
}

}  // namespace diptych

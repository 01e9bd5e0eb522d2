#include "lib/verify/ssim.h"

#include <array>
#include <cmath>
#include <vector>

namespace diptych {
namespace {

constexpr double kSigma = 1.5;
constexpr double kDataRange = 255;
constexpr double kC1 = (0.01 * kDataRange) * (0.01 * kDataRange);
constexpr double kC2 = (0.03 * kDataRange) * (0.03 * kDataRange);

using Weights = std::array<double, kSsimWindow>;

Weights gaussian() {
  Weights weights{};
  double sum = 0;
  for (std::size_t i = 0; i < kSsimWindow; ++i) {
    const double distance = (static_cast<double>(i) - kSsimWindow / 2) / kSigma;
    sum += weights[i] = std::exp(-0.5 * distance * distance);
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// What the window averages: x, y, x x, y y and x y.
constexpr std::size_t kMoments = 5;
using Moments = std::array<std::vector<double>, kMoments>;

// out[j] = sum of weights[i] * in[j + i * step]
void blur(const double* in, std::size_t step, const Weights& weights, std::vector<double>& out) {
  double* const sums = out.data();
  const std::size_t count = out.size();
  for (std::size_t j = 0; j < count; ++j) sums[j] = weights[0] * in[j];
  for (std::size_t i = 1; i < kSsimWindow; ++i) {
    const double weight = weights[i];
    const double* const shifted = in + i * step;
    for (std::size_t j = 0; j < count; ++j) sums[j] += weight * shifted[j];
  }
}

class Rows {
 public:
  Rows(const double* x, const double* y, std::size_t width)
      : x_(x), y_(y), width_(width), positions_(width - kSsimWindow + 1) {
    for (std::size_t m = 0; m < kMoments; ++m) {
      products_[m].resize(width_);
      row_[m].resize(positions_);
      window_[m].resize(positions_);
      ring_[m].resize(2 * kSsimWindow * positions_);
    }
  }

  // Blurs a row of the planes along the row, into two places: so that the last rows always stand
  // one behind the other somewhere.
  void push(std::size_t y) {
    const double *left = x_ + y * width_, *right = y_ + y * width_;
    for (std::size_t j = 0; j < width_; ++j) {
      products_[0][j] = left[j];
      products_[1][j] = right[j];
      products_[2][j] = left[j] * left[j];
      products_[3][j] = right[j] * right[j];
      products_[4][j] = left[j] * right[j];
    }
    for (std::size_t m = 0; m < kMoments; ++m) {
      blur(products_[m].data(), 1, kWeights, row_[m]);
      for (const std::size_t place : {next_, next_ + kSsimWindow}) {
        double* const out = ring_[m].data() + place * positions_;
        for (std::size_t j = 0; j < positions_; ++j) out[j] = row_[m][j];
      }
    }
    next_ = (next_ + 1) % kSsimWindow;
  }

  void add(SsimSums& sums) {
    for (std::size_t m = 0; m < kMoments; ++m)
      blur(ring_[m].data() + next_ * positions_, positions_, kWeights, window_[m]);
    for (std::size_t j = 0; j < positions_; ++j) {
      const double mean_x = window_[0][j], mean_y = window_[1][j];
      const double variance_x = window_[2][j] - mean_x * mean_x;
      const double variance_y = window_[3][j] - mean_y * mean_y;
      const double covariance = window_[4][j] - mean_x * mean_y;
      const double luminance =
          (2 * mean_x * mean_y + kC1) / (mean_x * mean_x + mean_y * mean_y + kC1);
      const double contrast = (2 * covariance + kC2) / (variance_x + variance_y + kC2);
      sums.ssim += luminance * contrast;
      sums.contrast += contrast;
    }
  }

 private:
  inline static const Weights kWeights = gaussian();

  const double *x_, *y_;
  std::size_t width_, positions_, next_ = 0;
  Moments products_, row_, window_, ring_;
};

}  // namespace

SsimSums ssim_rows(const double* x, const double* y, std::size_t width, std::size_t begin,
                   std::size_t end) {
  Rows rows(x, y, width);
  SsimSums sums;
  for (std::size_t row = begin; row < end + kSsimWindow - 1; ++row) {
    rows.push(row);
    if (row + 1 >= begin + kSsimWindow) rows.add(sums);
  }
  return sums;
}

}  // namespace diptych

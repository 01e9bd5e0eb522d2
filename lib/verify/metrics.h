// How far two pictures or two tensors are apart. Numbers only; gates.h decides.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/tensor/types.h"

namespace diptych {

// Over all elements, in double. NaN anywhere makes all of these NaN but the cosine; infinities
// that agree count as equal.
struct Difference {
  double max_abs = 0, mean_abs = 0;
  double relative = 0;  // max_abs / max |expected|; 0 where both are 0, infinite where only that is
  double relative_norm = 0;  // 2-norm of the difference / 2-norm of expected, likewise
  double cosine = 1;         // 1 where both are 0, 0 where one is
};
// Tensors of one shape, any dtype and device. Zero elements: no difference.
Difference difference(const Tensor& actual, const Tensor& expected);

// Pictures: uint8 [height, width, 3] of one shape.

// Structural similarity (Wang et al. 2004) with K1 = 0.01, K2 = 0.03, data range 255 and an 11x11
// Gaussian window of sigma 1.5, the mean over the three channels and over every pixel at least five
// away from the border. The value of scikit-image's structural_similarity(gaussian_weights=True,
// sigma=1.5, use_sample_covariance=False, data_range=255, channel_axis=2).
// Throws InputError for a side below 11.
double ssim(const Tensor& actual, const Tensor& expected);
// The same over several scales (Wang, Simoncelli and Bovik 2003): contrast and structure of five
// scales, luminance of the last, with the weights 0.0448, 0.2856, 0.3001, 0.2363 and 0.1333; a
// scale is the mean of 2x2 pixels of the one before, an odd side continued by its last line. A
// negative factor counts as 0; the mean over the three channels. A picture with a side below 161
// has as many scales as leave 11 pixels, with the first of these weights brought to a sum of 1; one
// scale is SSIM. Throws likewise.
double ms_ssim(const Tensor& actual, const Tensor& expected);
double psnr(const Tensor& actual, const Tensor& expected);  // dB; infinite for equal pictures

struct ImageMetrics {
  std::optional<double> ssim, ms_ssim;  // absent where a side is below 11
  double psnr = 0;                      // dB
  Difference difference;                // in levels of 0 to 255
};
ImageMetrics image_metrics(const Tensor& actual, const Tensor& expected);

constexpr int kDifferenceGain = 8;
// |actual - expected| per channel, times kDifferenceGain, cut at 255. uint8 [height, width, 3].
Tensor difference_picture(const Tensor& actual, const Tensor& expected);

}  // namespace diptych

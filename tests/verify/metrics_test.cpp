#include "lib/verify/metrics.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "tests/verify/pictures.h"

namespace {

using namespace diptych;
using diptych::test::formula_picture;
using diptych::test::with_noise;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST_CASE("SSIM and PSNR are scikit-image's") {
  struct Row {
    std::int64_t height, width;
    double ssim, psnr, noise_ssim, noise_psnr;
  };
  // scikit-image 0.26.0, numpy 2.4.6: structural_similarity(a, b, gaussian_weights=True, sigma=1.5,
  // use_sample_covariance=False, data_range=255, channel_axis=2) and peak_signal_noise_ratio of
  // formula pictures 0 and 3, and of picture 0 and its noisy copy.
  const Row rows[] = {
      {24, 31, 0.4308481363189703, 11.024026133540515, 0.9966311926780476, 39.93925752543422},
      {11, 11, 0.7396274383489501, 14.242552632558576, 0.994219362593927, 39.90969943329154},
      {64, 48, 0.47400100848658155, 11.21488185992174, 0.9962823271645584, 39.93776395444893},
  };
  for (const Row& row : rows) {
    CAPTURE(row.height);
    const Tensor a = formula_picture(row.height, row.width, 0);
    const Tensor b = formula_picture(row.height, row.width, 3);
    CHECK(ssim(a, b) == doctest::Approx(row.ssim).epsilon(1e-11));
    CHECK(ssim(b, a) == doctest::Approx(row.ssim).epsilon(1e-11));
    CHECK(psnr(a, b) == doctest::Approx(row.psnr).epsilon(1e-12));
    CHECK(ssim(a, with_noise(a)) == doctest::Approx(row.noise_ssim).epsilon(1e-11));
    CHECK(psnr(a, with_noise(a)) == doctest::Approx(row.noise_psnr).epsilon(1e-12));
  }
}

TEST_CASE("MS-SSIM of five scales, and of fewer where a side is below 161") {
  struct Row {
    std::int64_t height, width;
    double ms_ssim, noise_ms_ssim;
  };
  // numpy 2.4.6 with the formulas of metrics.h, of formula pictures 0 and 3, and of picture 0 and
  // its noisy copy. For the first two pytorch-msssim 1.0.0, whose window is float32 and which pads
  // odd sides with zeros, has 0.753001, 0.755283, 0.999717 and 0.999811.
  const Row rows[] = {
      {176, 192, 0.7530217605971794, 0.9997171719613694},
      {208, 176, 0.7553035777460423, 0.9998106512878547},
      {163, 171, 0.7536370194881233, 0.9997176759842357},  // odd sides
      {64, 48, 0.7000563827266229, 0.999577450563499},     // three scales
      {24, 31, 0.5971830565273075, 0.9994784954611866},    // two
  };
  for (const Row& row : rows) {
    CAPTURE(row.height);
    const Tensor a = formula_picture(row.height, row.width, 0);
    const Tensor b = formula_picture(row.height, row.width, 3);
    CHECK(ms_ssim(a, b) == doctest::Approx(row.ms_ssim).epsilon(1e-11));
    CHECK(ms_ssim(b, a) == doctest::Approx(row.ms_ssim).epsilon(1e-11));
    CHECK(ms_ssim(a, with_noise(a)) == doctest::Approx(row.noise_ms_ssim).epsilon(1e-11));
    CHECK(image_metrics(a, b).ms_ssim == ms_ssim(a, b));
    CHECK(image_metrics(a, b).ssim == ssim(a, b));
  }
  const Tensor smallest = formula_picture(11, 11, 0), other = formula_picture(11, 11, 3);
  CHECK(ms_ssim(smallest, other) == ssim(smallest, other));
  // Contrast that is turned around counts as 0.
  const Tensor turned = 255 - formula_picture(176, 176, 0);
  CHECK(ms_ssim(formula_picture(176, 176, 0), turned) == 0);
}

TEST_CASE("equal pictures") {
  const Tensor a = formula_picture(20, 20, 1);
  const ImageMetrics metrics = image_metrics(a, a.clone());
  CHECK(metrics.ssim.value() == doctest::Approx(1).epsilon(1e-14));
  CHECK(metrics.ms_ssim.value() == doctest::Approx(1).epsilon(1e-14));
  CHECK(metrics.psnr == kInfinity);
  CHECK(metrics.difference.max_abs == 0);
  CHECK(metrics.difference.cosine == doctest::Approx(1));
}

TEST_CASE("SSIM needs eleven pixels on a side") {
  const Tensor small = formula_picture(10, 40, 0);
  CHECK_THROWS_AS(ssim(small, small), InputError);
  CHECK_THROWS_AS(ms_ssim(small, small), InputError);
  CHECK_FALSE(image_metrics(small, small).ssim.has_value());
  CHECK_THROWS_AS(ssim(formula_picture(20, 20, 0), formula_picture(20, 21, 0)), c10::Error);
}

TEST_CASE("differences of pictures do not wrap around") {
  const Tensor a = formula_picture(24, 31, 0), b = formula_picture(24, 31, 3);
  const Difference gap = difference(a, b);
  CHECK(gap.max_abs == 253);
  CHECK(gap.mean_abs == doctest::Approx(39.14784946236559).epsilon(1e-12));
  CHECK(gap.cosine == doctest::Approx(0.8826939240994652).epsilon(1e-12));
}

TEST_CASE("differences of tensors") {
  const Tensor expected = at::tensor({1.0, -4.0, 0.0}, at::kDouble);
  const Difference gap = difference(at::tensor({1.5, -4.0, 0.0}, at::kDouble), expected);
  CHECK(gap.max_abs == 0.5);
  CHECK(gap.mean_abs == doctest::Approx(0.5 / 3));
  CHECK(gap.relative == 0.125);
  CHECK(gap.cosine == doctest::Approx(17.5 / std::sqrt(18.25 * 17)).epsilon(1e-12));

  const Tensor zero = at::zeros(3);
  CHECK(difference(zero, zero).relative == 0);
  CHECK(difference(zero, zero).cosine == 1);
  for (std::int64_t size = 1; size < 100; ++size) {
    const Tensor drawn = at::randint(256, {size}, at::kFloat);
    CHECK(difference(drawn, drawn).cosine == 1);
    CHECK(difference(drawn + 1, drawn * 3 + 3).cosine <= 1);
  }
  CHECK(difference(expected, zero).relative == kInfinity);
  CHECK(difference(expected, zero).cosine == 0);
  CHECK(difference(at::empty({0, 3}), at::empty({0, 3})).max_abs == 0);
  CHECK(difference(expected.to(at::kBFloat16), expected).max_abs == 0);
  CHECK(difference(at::tensor({1, 2}).t(), at::tensor({1, 5})).max_abs == 3);
}

TEST_CASE("NaN shows in every number; equal infinities do not count") {
  const Tensor with_nan = at::tensor({1.0, kNaN});
  for (const auto& [a, b] :
       {std::pair{with_nan, with_nan}, {at::ones(2), with_nan}, {with_nan, at::ones(2)}}) {
    CHECK(std::isnan(difference(a, b).max_abs));
    CHECK(std::isnan(difference(a, b).mean_abs));
    CHECK(std::isnan(difference(a, b).cosine));
  }
  const Tensor infinite = at::tensor({1.0, kInfinity});
  CHECK(difference(infinite, infinite).max_abs == 0);
  CHECK(difference(at::ones(2), infinite).max_abs == kInfinity);
}

TEST_CASE("the difference picture is amplified and cut") {
  const Tensor a = at::tensor({10, 200, 0}, at::kByte).reshape({1, 1, 3});
  const Tensor b = at::tensor({13, 100, 0}, at::kByte).reshape({1, 1, 3});
  CHECK(
      at::equal(difference_picture(a, b), at::tensor({24, 255, 0}, at::kByte).reshape({1, 1, 3})));
}

}  // namespace

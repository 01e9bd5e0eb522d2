#include "lib/verify/gates.h"

#include <limits>

#include <doctest/doctest.h>

#include "lib/base/error.h"

namespace {

using namespace diptych;

ImageMetrics metrics() {
  ImageMetrics result;
  result.ssim = 0.9;
  result.psnr = 30;
  result.difference = {.max_abs = 12, .mean_abs = 1, .relative = 0.05, .cosine = 0.999};
  return result;
}

TEST_CASE("only the gates that are set are applied, in a fixed order") {
  CHECK(apply_gates({}, metrics()).empty());
  const auto results = apply_gates(
      {.min_ssim = 0.9, .min_psnr = 30.1, .max_abs = 12.0, .min_cosine = 0.9995}, metrics());
  REQUIRE(results.size() == 4);
  CHECK(results[0].pass);  // limits themselves pass
  CHECK_FALSE(results[1].pass);
  CHECK(results[2].pass);
  CHECK_FALSE(results[3].pass);
  CHECK(describe(results[0]) == "ssim 0.9, at least 0.9");
  CHECK(describe(results[1]) == "psnr 30 is below 30.1");
  CHECK(describe(results[2]) == "max_abs 12, at most 12");
  CHECK(describe(apply_gates({.max_abs = 11.0}, metrics())[0]) == "max_abs 12 is above 11");
}

TEST_CASE("NaN passes no gate") {
  ImageMetrics broken = metrics();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  broken.ssim = broken.psnr = broken.difference.max_abs = broken.difference.cosine = kNaN;
  for (const auto& gate : apply_gates(
           {.min_ssim = -1.0, .min_psnr = 0.0, .max_abs = 255.0, .min_cosine = -1.0}, broken)) {
    CHECK_FALSE(gate.pass);
  }
  CHECK_FALSE(apply_gates({.min_psnr = kNaN}, metrics())[0].pass);
}

TEST_CASE("an SSIM gate on a picture without SSIM is an error") {
  ImageMetrics small = metrics();
  small.ssim.reset();
  CHECK_THROWS_AS(apply_gates({.min_ssim = 0.5}, small), InputError);
  CHECK(apply_gates({.min_psnr = 29.0}, small)[0].pass);
}

}  // namespace

#include "lib/verify/clip_metrics.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/verify/json.h"
#include "tests/verify/pictures.h"

namespace {

using namespace diptych;
using diptych::test::formula_picture;
using diptych::test::with_noise;

// Frame 1 is equal, frame 2 the worst.
ClipMetrics three_frames() {
  ClipMetrics metrics;
  const at::Tensor a = formula_picture(24, 31, 0);
  metrics.frames.push_back(image_metrics(a, with_noise(a)));
  metrics.frames.push_back(image_metrics(a, a));
  metrics.frames.push_back(image_metrics(a, formula_picture(24, 31, 3)));
  return metrics;
}

TEST_CASE("mean and worst of a clip, with the frame of the worst") {
  const ClipMetrics metrics = three_frames();
  const ClipExtremes all = extremes_of(metrics);
  REQUIRE(all.ssim.has_value());
  CHECK(all.ssim->frame == 2);
  CHECK(all.ssim->worst == metrics.frames[2].ssim);
  CHECK(all.ssim->mean ==
        doctest::Approx((*metrics.frames[0].ssim + 1 + *metrics.frames[2].ssim) / 3));
  CHECK(all.ms_ssim->worst == metrics.frames[2].ms_ssim);
  CHECK(all.psnr.frame == 2);
  CHECK(all.psnr.mean == doctest::Approx((metrics.frames[0].psnr + metrics.frames[2].psnr) / 2));
  CHECK(all.max_abs.frame == 2);
  CHECK(all.max_abs.worst == 253);
}

TEST_CASE("equal clips") {
  ClipMetrics metrics = three_frames();
  metrics.frames = {metrics.frames[1], metrics.frames[1]};
  CHECK(std::isinf(extremes_of(metrics).psnr.mean));
  CHECK(extremes_of(metrics).max_abs.worst == 0);
  CHECK(to_json(metrics)["mean"]["psnr"].is_null());
}

TEST_CASE("a gate holds where it holds for every frame") {
  const ClipMetrics metrics = three_frames();
  const auto gates = apply_gates({.min_ssim = 0.5, .min_ms_ssim = 0.5, .max_abs = 253.0}, metrics);
  REQUIRE(gates.size() == 3);
  CHECK(describe(gates[0]) == "ssim 0.430848 of frame 2 is below 0.5");
  CHECK(gates[1].name == "ms_ssim");
  CHECK(gates[1].pass);
  CHECK(gates[2].pass);
  CHECK(to_json(gates[0])["frame"] == 2);
}

TEST_CASE("every frame in JSON") {
  const nlohmann::json json = to_json(three_frames());
  CHECK(json["frames"] == 3);
  CHECK(json["per_frame"].size() == 3);
  CHECK(json["per_frame"][1]["max_abs"] == 0);
  CHECK(json["worst"]["ssim"]["frame"] == 2);
  CHECK(json["worst"]["psnr"]["value"].is_number());
}

TEST_CASE("NaN is the worst") {
  ClipMetrics metrics = three_frames();
  metrics.frames[1].difference.cosine = std::numeric_limits<double>::quiet_NaN();
  CHECK(extremes_of(metrics).cosine.frame == 1);
}

}  // namespace

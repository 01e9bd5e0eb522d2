#include "tests/pipelines/step_cache_cases.h"

#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/cache_report.h"

namespace diptych::test {

RunConfig cached_request(const std::string& prompt) {
  RunConfig config = paint_request(prompt, 42, 96, 64);
  config.sampling.steps = 20;
  config.sampling.cfg_img_scale = 1;
  return config;
}

RunConfig taylorseer(RunConfig config) {
  config.cache_mode = StepCacheMode::taylorseer;
  return config;
}

std::vector<Result> paint(SessionFixture& f, const RunConfig& config) {
  std::vector<Result> pictures;
  Results results;
  results.result = [&](const Result& picture, const Report&) { pictures.push_back(picture); };
  f.session->run(make_jobs(*f.session, {config}).group, f.progress, results);
  return pictures;
}

CalibrationFile::CalibrationFile(SessionFixture& f)
    : path_(std::filesystem::temp_directory_path() /
            fmt::format("diptych-teacache-{}.json", getpid())) {
  const RunConfig prompt = cached_request("a cup of tea");
  const auto recording = f.session->capabilities().calibrator->record_steps(
      make_jobs(*f.session, {prompt}).group, f.progress);
  StepCalibration::fit(recording.changes, f.session->report().weights_hash).write(path_);
}

CalibrationFile::~CalibrationFile() {
  std::filesystem::remove(path_);
}

RunConfig CalibrationFile::teacache(RunConfig config, double threshold) const {
  config.cache_mode = StepCacheMode::teacache;
  config.cache_calibration = path_;
  config.cache_threshold = threshold;
  return config;
}

void check_step_caches(SessionPlace place) {
  SessionFixture f(place);
  const CalibrationFile file(f);
  const RunConfig plain = cached_request("a red fox");
  const std::string exact = paint(f, plain).front().latent_hash;
  for (RunConfig config :
       {taylorseer(plain), file.teacache(plain, 0.1), file.teacache(plain, 1e-9)}) {
    config.cache_report = true;
    const Result picture = paint(f, config).front();
    REQUIRE(picture.cache_report.has_value());
    const CacheReport& report = *picture.cache_report;
    INFO(describe(report));
    CHECK(report.uncached_forwards == 35);
    const bool all_computed = config.cache_threshold < 1e-6;
    CHECK((report.forwards == 35) == all_computed);
    CHECK((picture.latent_hash == exact) == all_computed);
    CHECK(std::isinf(report.psnr) == all_computed);
    CHECK(report.latent_cosine > 0.995);
    CHECK(report.ssim.value() > 0.98);
    CHECK(paint(f, config).front().latent_hash == picture.latent_hash);
  }
}

}  // namespace diptych::test

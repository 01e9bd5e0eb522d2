// Step caches through a session, as the verbs use them: calibration, use, report.
#include <algorithm>
#include <limits>
#include <span>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lib/base/error.h"
#include "lib/sampling/schedule.h"
#include "lib/sampling/step_cache/step_calibration.h"
#include "lib/session/cache_report.h"
#include "lib/verify/trace_compare.h"
#include "tests/pipelines/step_cache_cases.h"

namespace diptych {
namespace {

using test::cached_request;
using test::CalibrationFile;
using test::paint;
using test::SessionFixture;
using test::taylorseer;
constexpr test::SessionPlace kCpu = {"cpu", "float32"};

}  // namespace

TEST_CASE("step caches: calibrated, painted and reported") {
  test::check_step_caches(kCpu);
  test::check_step_caches({"cpu", "bfloat16"});
}

TEST_CASE("recorded steps: one change for every branch forward but a context's first") {
  SessionFixture f(kCpu);
  std::vector<RunConfig> requests = {cached_request("a red fox"), cached_request("tea")};
  requests[1].sampling.width = requests[1].sampling.height = 48;
  requests[1].sampling.cfg_interval_low = 0;
  const StepRecording recording = f.session->capabilities().calibrator->record_steps(
      test::make_jobs(*f.session, requests).group, f.progress);
  CHECK(f.session->report().weights_hash.size() == 33);
  REQUIRE(recording.pictures.size() == 2);
  CHECK(recording.steps() == 2 * 19);
  CHECK(recording.pictures[0].front().contexts == 2);
  CHECK(recording.pictures[0].back().contexts == 1);
  CHECK(recording.pictures[1].back().contexts == 2);
  const std::int64_t forwards = paint(f, cached_request("a red fox")).front().forwards;
  CHECK(recording.changes.size() == static_cast<std::size_t>(forwards - 2 + 2 * 18));
  CHECK(StepCalibration::fit(recording.changes, "x").explained_variance() > 0.9);
}

TEST_CASE("TeaCache by its calibration: the report tells what was saved, and what it cost") {
  SessionFixture f(kCpu);
  const CalibrationFile file(f);
  const std::int64_t plain = paint(f, cached_request("a red fox")).front().forwards;
  CHECK(plain == 35);  // 19 steps, 16 of them with guidance
  struct Expected {
    double threshold;
    std::int64_t forwards;
    double least_cosine, least_ssim;
  };
  // Measured 0.999975 and 0.9999; 0.99925 and 0.9974.
  for (const auto& [threshold, forwards, least_cosine, least_ssim] :
       {Expected{1e-9, 35, 1, 1}, {0.05, 17, 0.9999, 0.999}, {0.2, 7, 0.998, 0.99}}) {
    CAPTURE(threshold);
    RunConfig cached = file.teacache(cached_request("a red fox"), threshold);
    cached.cache_report = true;
    const Result picture = paint(f, cached).front();
    REQUIRE(picture.cache_report.has_value());
    const CacheReport& report = *picture.cache_report;
    INFO(describe(report));
    CHECK(picture.forwards == forwards);
    CHECK(report.forwards == forwards);
    CHECK(report.uncached_forwards == plain);
    CHECK(report.latent_cosine >= least_cosine);
    CHECK(report.ssim.value() >= least_ssim);
    const bool all_computed = forwards == plain;
    CHECK((report.latent_relative_l2 == 0) == all_computed);
    CHECK((report.psnr == std::numeric_limits<double>::infinity()) == all_computed);
    CHECK(report.seconds > 0);
    CHECK(report.uncached_seconds > 0);
    // The report changes nothing.
    cached.cache_report = false;
    const Result alone = paint(f, cached).front();
    CHECK_FALSE(alone.cache_report.has_value());
    CHECK(alone.latent_hash == picture.latent_hash);
    CHECK(alone.forwards == forwards);
  }
  RunConfig uncached = cached_request("a red fox");
  uncached.cache_report = true;  // nothing to compare
  CHECK_FALSE(paint(f, uncached).front().cache_report.has_value());
}

TEST_CASE("a picture after another equals one painted alone") {
  SessionFixture f(kCpu);
  const CalibrationFile file(f);
  for (RunConfig config :
       {file.teacache(cached_request("a red fox"), 0.1), taylorseer(cached_request("a red fox"))}) {
    CAPTURE(name_of(config.cache_mode));
    for (const bool reports : {false, true}) {
      config.cache_report = reports;
      config.sampling.batch_count = 2;
      config.sampling.seed = 5;
      const std::vector<Result> both = paint(f, config);
      REQUIRE(both.size() == 2);
      config.sampling.batch_count = 1;
      config.sampling.seed = 6;
      const Result alone = paint(f, config).front();
      CHECK(both[1].latent_hash == alone.latent_hash);
      CHECK(both[1].forwards == alone.forwards);
      CHECK(both[0].latent_hash != alone.latent_hash);
    }
  }
}

TEST_CASE("both CFG modes give the same cached picture, with any guidance") {
  SessionFixture f(kCpu);
  const CalibrationFile file(f);
  struct Scales {
    double low, high, image;
  };
  for (const auto& [low, high, image] : {Scales{0.4, 1, 1}, {0.2, 0.8, 1}, {0, 1, 1.5}}) {
    RunConfig plain = cached_request("a red fox");
    plain.sampling.cfg_interval_low = low;
    plain.sampling.cfg_interval_high = high;
    plain.sampling.cfg_img_scale = image;
    const Result exact = paint(f, plain).front();
    for (RunConfig config : {file.teacache(plain, 0.1), taylorseer(plain)}) {
      CAPTURE(name_of(config.cache_mode));
      CAPTURE(low);
      config.cache_report = true;
      const Result batched = paint(f, config).front();
      config.cfg_mode = CfgMode::sequential;
      const Result sequential = paint(f, config).front();
      CHECK(batched.forwards == sequential.forwards);
      CHECK(batched.forwards < exact.forwards);
      const Tensor apart = (batched.rgb().to(at::kInt) - sequential.rgb().to(at::kInt)).abs();
      CHECK(apart.max().item<int>() <= 1);  // a level, where rounding decides
      INFO(describe(*batched.cache_report));
      CHECK(batched.cache_report->latent_cosine > 0.99);
      CHECK(batched.cache_report->latent_cosine < 1);
    }
  }
}

TEST_CASE("a branch that sets in later has TaylorSeer calls of its own") {
  SessionFixture f(kCpu);
  RunConfig config = taylorseer(cached_request("a red fox"));
  config.sampling.cfg_img_scale = 1.5;  // the image branch reads what cond reads
  const auto updates = static_cast<std::size_t>(config.sampling.steps - 1);
  // Calls 0 to 4, 7, 10, ... are computed.
  const auto computed = [](std::int64_t calls) {
    return std::min<std::int64_t>(calls, 5) + std::max<std::int64_t>(calls - 5, 0) / 3;
  };
  const FlowSchedule flow =
      FlowSchedule::shifted(config.sampling.steps, config.sampling.timestep_shift);
  for (const double high : {1.0, 0.9}) {
    CAPTURE(high);
    config.sampling.cfg_interval_high = high;
    const auto low = static_cast<float>(config.sampling.cfg_interval_low);
    const auto guided = std::ranges::count_if(std::span(flow.times).first(updates), [&](float t) {
      return t > low && t <= static_cast<float>(high);
    });
    REQUIRE(guided > 5);
    const std::int64_t branches = high == 1 ? 1 : 2;  // beside cond
    for (const CfgMode mode : {CfgMode::batched, CfgMode::sequential}) {
      config.cfg_mode = mode;
      CHECK(paint(f, config).front().forwards ==
            computed(static_cast<std::int64_t>(updates)) + branches * computed(guided));
    }
    // Without the cache there is nothing to count.
    RunConfig plain = config;
    plain.cache_mode = StepCacheMode::none;
    CHECK(paint(f, plain).front().forwards == static_cast<std::int64_t>(updates) + guided);
  }
}

TEST_CASE("requests painted together have a report each") {
  SessionFixture f(kCpu);
  std::vector<RunConfig> requests = {taylorseer(cached_request("a red fox")),
                                     taylorseer(cached_request("tea"))};
  for (RunConfig& config : requests) config.cache_report = true;
  CHECK(f.session->may_share(requests[0], requests[1]));
  std::vector<CacheReport> reports;
  Results results;
  results.result = [&](const Result& picture, const Report&) {
    reports.push_back(picture.cache_report.value());
  };
  f.session->run(test::make_jobs(*f.session, requests).group, f.progress, results);
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].latent_cosine != reports[1].latent_cosine);
  CHECK(reports[0].uncached_forwards == 35);
  CHECK(reports[1].uncached_forwards == 35);
  requests[1].cache_report = false;
  CHECK_FALSE(f.session->may_share(requests[0], requests[1]));
  // TeaCache would decide by both of them.
  for (RunConfig& config : requests)
    config = cached_request("tea"), config.cache_mode = StepCacheMode::teacache;
  CHECK_FALSE(f.session->may_share(requests[0], requests[1]));
}

TEST_CASE("a calibration of other weights is refused before anything is painted") {
  SessionFixture measured(kCpu);
  const CalibrationFile file(measured);
  SessionFixture f(kCpu);
  const RunConfig config = file.teacache(cached_request("a red fox"), 0.1);
  StepCalibration calibration = StepCalibration::read(config.cache_calibration);
  calibration.weights_hash[0] = calibration.weights_hash[0] == '0' ? '1' : '0';
  calibration.write(config.cache_calibration);
  std::size_t pictures = 0;
  Results results;
  results.result = [&](const Result&, const Report&) { ++pictures; };
  const test::MadeJobs jobs = test::make_jobs(*f.session, {config});
  CHECK_THROWS_WITH_AS(f.session->run(jobs.group, f.progress, results),
                       doctest::Contains("weights_hash: measured on "), InputError);
  CHECK(pictures == 0);
  for (const auto& [stage, seconds] : f.session->report().seconds) {
    CHECK(stage != "prefill");
    CHECK(stage != "denoise");
  }
}

TEST_CASE("a trace is of the run that was asked for, with and without the report") {
  SessionFixture f(kCpu);
  RunConfig config = taylorseer(cached_request("a red fox"));
  config.trace = std::filesystem::temp_directory_path() /
                 fmt::format("diptych-trace-{}.safetensors", getpid());
  const auto traced = [&](bool reports) {
    config.cache_report = reports;
    config.trace_filter = {"step*.latent", "step007.cond.layer*", "vae.decoded"};
    paint(f, config);
    const NamedTensors tensors = read_trace(config.trace);
    std::filesystem::remove(config.trace);
    return tensors;
  };
  const auto with = traced(true), without = traced(false);
  CHECK(without.size() == 19 + 3 + 1);
  REQUIRE(with.size() == without.size());
  for (const auto& [name, value] : without) CHECK(with.at(name).equal(value));
}

}  // namespace diptych

// When both guidance branches of a video model may share a forward: the decisions that are recorded
// of FastVideo's batched guidance. And which forwards a step cache leaves out.
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/pipelines/dit/block_cache.h"
#include "lib/pipelines/dit/branches.h"
#include "lib/pipelines/dit/replay_parts.h"
#include "tests/support/folder.h"
#include "tests/verify/goldens.h"

namespace diptych {
namespace {

RecordedCase table() {
  const auto folder = test::goldens_of("wan").front() / "cases/batched_cfg_fallback";
  return {folder, test::case_json(folder)};
}

std::string failure_of(const RecordedCase& recorded, TraceSink& trace) {
  try {
    replay_dit_part(recorded.task(), recorded, RunConfig(), trace);
  } catch (const CheckFailed& failure) {
    return failure.what();
  }
  return "";
}

}  // namespace

TEST_CASE("branches run as the table says") {
  const RecordedCase recorded = table();
  TraceSink trace;
  CHECK(replay_dit_part(recorded.task(), recorded, RunConfig(), trace));
  CHECK(trace.rows() == 14);
  CHECK(trace.tensors().empty());
}

TEST_CASE("a row that differs is named") {
  RecordedCase recorded = table();
  recorded.description["rows"][2]["expected"] = "batched";
  TraceSink trace;
  CHECK(failure_of(recorded, trace) ==
        "row 2: sequential, expected batched: I2V (Wan2.1 / A14B channel concat)");
  CHECK(trace.rows() == 2);
  recorded.description["rows"][0].erase("present");
  CHECK(test::message_of([&] {
          replay_dit_part(recorded.task(), recorded, RunConfig(), trace);
        }).ends_with("/rows/0/present: missing"));
}

TEST_CASE("a task of whole runs is not a part") {
  const RecordedCase recorded = table();
  TraceSink trace;
  CHECK(!replay_dit_part("t2v", recorded, RunConfig(), trace));
}

TEST_CASE("the reason names what stands in the way") {
  constexpr std::array<std::string_view, 2> kPicture = {"image_latent", "image_embeds"};
  CHECK(!why_sequential({}).has_value());
  CHECK(why_sequential({.conditioned_by = kPicture}) ==
        "the steps are conditioned by image_latent and image_embeds");
  CHECK(why_sequential({.conditioned_by = {}, .equal_text_shapes = false})->find("shapes") !=
        std::string::npos);
  CHECK(why_sequential({.conditioned_by = kPicture, .gated = true})->find("adaptive guidance") !=
        std::string::npos);
}

namespace {

Tensor itself(const Tensor& rows) {
  return rows;
}

StepCacheConfig by_teacache(double threshold) {
  // The output changes as the input does.
  return {StepCacheMode::teacache, threshold, {0, 0, 0, 1, 0}};
}

}  // namespace

TEST_CASE("a series of blocks computes and extrapolates as TaylorSeer does, for each branch") {
  constexpr std::int64_t kSteps = 12;
  BlockCache series;
  std::vector<TaylorSeer> expected(2);
  std::int64_t runs = 0;
  const auto run = [&](Tensor x) {
    ++runs;
    return x.pow(2);
  };
  for (int clip = 0; clip < 2; ++clip) {
    series.begin({StepCacheMode::taylorseer}, kSteps);
    expected.assign(2, {});
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (std::int64_t branch = 0; branch < 2; ++branch) {
        TaylorSeer& own = expected[static_cast<std::size_t>(branch)];
        const Tensor x = at::full({3, 2}, static_cast<double>(step + 30 * branch) / 10);
        const bool computed = own.begin_call();
        if (computed) own.store(x.pow(2));
        const Tensor rows = series.rows({step, branch}, x.clone(), itself, run);
        CHECK(at::equal(rows, computed ? x.pow(2) : own.predict()));
      }
    }
    CHECK(series.note() == "TaylorSeer computed 7 of 12 steps");
    CHECK(runs == (clip + 1) * 14);
  }
}

TEST_CASE("a series of blocks begins anew with another transformer") {
  BlockCache series;
  series.begin({StepCacheMode::taylorseer}, 8);
  for (std::int64_t step = 0; step < 8; ++step) {
    const auto run = [](Tensor x) { return x; };
    const Tensor x = at::full({1, 1}, static_cast<double>(step * step));
    const bool same =
        at::equal(series.rows({step, 0, 1, step < 6 ? 0U : 1U}, x.clone(), itself, run), x);
    CHECK(same == (step != 5));
  }
  CHECK(series.note() == "TaylorSeer computed 7 of 8 steps");
}

TEST_CASE("TeaCache leaves out steps whose input has changed little, for all branches alike") {
  // Relative changes of the input by step: 0.1 each; with 0.25 every third step is computed.
  constexpr std::int64_t kSteps = 9;
  BlockCache cache;
  const auto input = [](std::int64_t step) {
    return at::full({4, 2}, std::pow(1.1, static_cast<double>(step)), at::kDouble);
  };
  std::vector<std::int64_t> ran;
  for (const std::int64_t samples : {1, 2}) {
    cache.begin(by_teacache(0.25), kSteps);
    ran.clear();
    std::int64_t last = 0;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (std::int64_t first = 0; first < 2; first += samples) {
        const auto run = [&](Tensor x) {
          if (first == 0) ran.push_back(last = step);
          return x.mul_(3 + static_cast<double>(first));
        };
        const Tensor rows = cache.rows(
            {step, first, samples}, input(step),
            [](const Tensor& x) { return x.narrow(0, 0, 2).clone(); }, run);
        // What the last computed step added.
        const Tensor expected = input(step) + (2 + static_cast<double>(first)) * input(last);
        CHECK(at::allclose(rows, expected, 1e-12));
      }
    }
    CHECK(ran == std::vector<std::int64_t>{0, 3, 6, 8});
    CHECK(cache.note() == "TeaCache computed 4 of 9 steps");
  }
}

TEST_CASE("TeaCache computes for another transformer, and for a branch that was left out") {
  BlockCache cache;
  cache.begin(by_teacache(1000), 8);
  std::vector<std::pair<std::int64_t, std::int64_t>> ran;
  const auto call = [&](std::int64_t step, std::int64_t first, std::size_t model) {
    cache.rows({step, first, 1, model}, at::ones({1, 1}), itself, [&](Tensor x) {
      ran.emplace_back(step, first);
      return x;
    });
  };
  call(0, 1, 0);
  call(1, 1, 0);
  call(2, 1, 0), call(2, 0, 0);  // the second branch sets in
  call(3, 1, 0), call(3, 0, 0);
  call(4, 1, 1), call(4, 0, 1);
  call(5, 1, 1), call(5, 0, 1);
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected = {
      {0, 1}, {2, 0}, {4, 1}, {4, 0}};
  CHECK((ran == expected));
}

TEST_CASE(
    "changes are recorded by branch and transformer, whether branches share forwards or not") {
  const auto record = [](std::int64_t samples) {
    BlockCache cache;
    StepChangeRecorder recorder;
    cache.record(recorder);
    cache.begin({}, 4);
    recorder.begin_picture();
    for (std::int64_t step = 0; step < 4; ++step) {
      for (std::int64_t first = 0; first < 2; first += samples) {
        const Tensor one = at::full({2, 3}, static_cast<double>(1 + step), at::kDouble);
        const Tensor of_branches = at::cat({one, 10 * one + step});  // of branches 0 and 1
        const Tensor x = of_branches.narrow(0, 2 * first, 2 * samples).clone();
        const Tensor rows = cache.rows(
            {step, first, samples, step < 2 ? 0U : 1U}, x, [&](const Tensor&) { return one; },
            [](Tensor given) { return given; });
        CHECK(at::equal(rows, x));
      }
    }
    return recorder.recording();
  };
  const StepRecording apart = record(1), together = record(2);
  CHECK((apart.changes == together.changes));
  // From step 0 to 1 and from 2 to 3; between them the transformer is another one.
  REQUIRE(apart.changes.size() == 4);
  CHECK((apart.changes[0] == StepChange{1, 1}));
  CHECK(apart.changes[1].output == doctest::Approx(1.1));
  CHECK(apart.pictures.front().size() == 4);
}

}  // namespace diptych

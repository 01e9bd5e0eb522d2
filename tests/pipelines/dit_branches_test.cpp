// When both guidance branches of a video model may share a forward: the decisions that are recorded
// of FastVideo's batched guidance. And which forwards a step cache leaves out.
#include <array>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/pipelines/dit/block_series.h"
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

TEST_CASE("a series of blocks computes and extrapolates as TaylorSeer does, for each branch") {
  constexpr std::int64_t kSteps = 12;
  BlockSeries series;
  std::vector<TaylorSeer> expected(2);
  std::int64_t runs = 0;
  const auto run = [&](Tensor x) {
    ++runs;
    return x.pow(2);
  };
  for (int clip = 0; clip < 2; ++clip) {
    series.begin(kSteps);
    expected.assign(2, {});
    for (std::int64_t step = 0; step < kSteps; ++step) {
      for (std::int64_t branch = 0; branch < 2; ++branch) {
        TaylorSeer& own = expected[static_cast<std::size_t>(branch)];
        const Tensor x = at::full({3, 2}, static_cast<double>(step + 30 * branch) / 10);
        const bool computed = own.begin_call();
        if (computed) own.store(x.pow(2));
        const Tensor rows = series.rows(step, branch, 0, x.clone(), run);
        CHECK(at::equal(rows, computed ? x.pow(2) : own.predict()));
      }
    }
    CHECK(series.note() == "TaylorSeer computed 7 of 12 steps");
    CHECK(runs == (clip + 1) * 14);
  }
}

TEST_CASE("a series of blocks begins anew with another transformer") {
  BlockSeries series;
  series.begin(8);
  for (std::int64_t step = 0; step < 8; ++step) {
    const auto run = [](Tensor x) { return x; };
    const Tensor x = at::full({1, 1}, static_cast<double>(step * step));
    const bool same = at::equal(series.rows(step, 0, step < 6 ? 0 : 1, x.clone(), run), x);
    CHECK(same == (step != 5));
  }
  CHECK(series.note() == "TaylorSeer computed 7 of 8 steps");
}

}  // namespace diptych

// When both guidance branches of a video model may share a forward: the decisions that are recorded
// of FastVideo's batched guidance.
#include <array>

#include <doctest/doctest.h>

#include "lib/base/error.h"
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

}  // namespace diptych

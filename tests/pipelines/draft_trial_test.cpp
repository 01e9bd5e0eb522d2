// When a drafter is left out, by times that are made up.
#include "lib/pipelines/drafting/draft_trial.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

struct Speeds {
  double block_seconds, plain_seconds;
  std::int64_t block_tokens;  // of one text
};

// Iterations until it is switched off, at most `limit`.
int run(DraftTrial& trial, std::size_t texts, const Speeds& speeds, int limit) {
  for (int i = 0; i < limit; ++i) {
    const bool drafts = trial.drafts(texts);
    const auto all = static_cast<std::int64_t>(texts);
    trial.add(drafts ? speeds.block_seconds : speeds.plain_seconds,
              drafts ? all * speeds.block_tokens : all);
    if (trial.switched_off()) return i + 1;
  }
  return limit;
}

constexpr int kMeasured = 1 + DraftTrial::kBlocks + 1 + DraftTrial::kPlainSteps;

}  // namespace

TEST_CASE("draft trial: drafts that pay are kept") {
  DraftTrial trial;
  CHECK(run(trial, 1, {1.3, 1, 2}, 200) == 200);
  CHECK_FALSE(trial.switched_off());
  CHECK(trial.drafts(1));
}

TEST_CASE("draft trial: drafts that do not pay end when both ways are measured") {
  DraftTrial trial;
  CHECK(run(trial, 1, {1.3, 1, 1}, 200) == kMeasured);
  CHECK(trial.switched_off());
  CHECK_FALSE(trial.drafts(1));
}

TEST_CASE("draft trial: tokens are counted by text") {
  DraftTrial trial;
  CHECK(run(trial, 4, {1.3, 1, 1}, 200) == kMeasured);
  DraftTrial pays;
  CHECK(run(pays, 4, {1.3, 1, 2}, 200) == 200);
}

TEST_CASE("draft trial: drafts that stop paying end later") {
  DraftTrial trial;
  run(trial, 1, {1.3, 1, 6}, 50);
  REQUIRE_FALSE(trial.switched_off());
  const int more = run(trial, 1, {1.3, 1, 1}, 50);
  CHECK(trial.switched_off());
  CHECK(more <= static_cast<int>(DraftTrial::kBlocks));
}

TEST_CASE("draft trial: one slow step does not count, nor does the first of each kind") {
  DraftTrial trial;
  for (int i = 0; i < 100; ++i) {
    const bool drafts = trial.drafts(1);
    const bool first = i == 0 || i == 1 + static_cast<int>(DraftTrial::kBlocks);
    const bool slow = i == kMeasured - 1;  // a plain one
    trial.add(first || slow ? 1000 : drafts ? 1.3 : 1, drafts ? 1 : 1);
  }
  CHECK(trial.switched_off());
}

TEST_CASE("draft trial: half as many texts are measured anew") {
  DraftTrial trial;
  run(trial, 8, {1.3, 1, 2}, 50);
  int plain = 0;
  for (int i = 0; i < 50; ++i) {
    plain += trial.drafts(4) ? 0 : 1;
    trial.add(1, 8);
  }
  CHECK(plain == 1 + static_cast<int>(DraftTrial::kPlainSteps));
}

}  // namespace diptych

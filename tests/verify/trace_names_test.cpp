#include "lib/verify/trace_names.h"

#include <algorithm>
#include <random>
#include <vector>

#include <doctest/doctest.h>

namespace {

using namespace diptych;

constexpr std::string_view kStages[] = {"read", "", "step", "read.last", "end"};
constexpr std::string_view kWithin[] = {"t", "in", "layer", "up", "block_1", "out"};
constexpr std::string_view kFalling[] = {"up"};
constexpr TraceNames kNames = {kStages, kWithin, kFalling, {}};

// In order of computation.
const std::vector<std::string> kRun = {
    "read.00.ids",
    "read.00.in",
    "read.00.layer00.out",
    "read.00.layer02.in",
    "read.00.layer10.in",
    "read.00.out",
    "read.10.in",
    "0.in",
    "0.up.3.block_1",
    "0.up.3.out",
    "0.up.0.block_1",
    "0.out",
    "1.in",
    "step000.len",
    "step000.t",
    "step000.out",
    "step001.t",
    "step010.t",
    "read.last",
    "end",
    "end.out",
    "something.else.02",
    "something.else.10",
};

TEST_CASE("names sort in order of computation") {
  std::mt19937 random(7);
  auto names = kRun;
  std::shuffle(names.begin(), names.end(), random);
  std::ranges::sort(names,
                    [](const auto& a, const auto& b) { return computed_before(a, b, kNames); });
  CHECK(names == kRun);
}

TEST_CASE("without a list names sort by their words and numbers") {
  std::vector<std::string> names = {"b.10", "b.9", "b", "a.layer10", "a.layer9", "step2", "step10"};
  std::ranges::sort(names, [](const auto& a, const auto& b) { return computed_before(a, b, {}); });
  CHECK(names ==
        std::vector<std::string>{"a.layer9", "a.layer10", "b", "b.9", "b.10", "step2", "step10"});
}

TEST_CASE("the order is a strict weak order on any names") {
  auto names = kRun;
  for (const char* odd :
       {"", ".", "..", "step", "step5", "step05", "99999999999999999999", "layer.", "up.1"})
    names.emplace_back(odd);
  for (const TraceNames& known : {kNames, TraceNames{}}) {
    for (const auto& a : names) {
      CHECK_FALSE(computed_before(a, a, known));
      for (const auto& b : names) {
        if (a != b) CHECK(computed_before(a, b, known) != computed_before(b, a, known));
      }
    }
  }
}

TEST_CASE("what a family knows of names is counted by their first parts") {
  const std::vector<std::string> names = {"read.00.in", "step003", "7.else",
                                          "steps.t",    "in.out",  ""};
  CHECK(count_known(names, kNames) == 3);
  CHECK(count_known(names, {}) == 0);
}

}  // namespace

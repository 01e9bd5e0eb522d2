// What the tests of the command line say over and over.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "tests/cli/process.h"

namespace diptych::test {

using Words = std::vector<std::string>;

inline Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What a command says that must end with 2 and print nothing: its last message, with its line end.
inline std::string refusal(const Outcome& outcome) {
  constexpr const char* kName = "diptych: ";
  CAPTURE(outcome.out);
  CAPTURE(outcome.err);
  CHECK(outcome.code == 2);
  CHECK(outcome.out.empty());
  const std::size_t begin = outcome.err.rfind(kName);
  REQUIRE(begin != std::string::npos);
  return outcome.err.substr(begin + std::string(kName).size());
}

// The same where nothing else stands on stderr: the whole line, "diptych: ...".
inline std::string refusal_in_one_line(const Outcome& outcome) {
  refusal(outcome);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  return outcome.err;
}

}  // namespace diptych::test

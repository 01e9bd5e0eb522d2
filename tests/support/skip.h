// Test cases that need what a build or a machine may lack. They stand in a suite "needs NAME",
// which has a ctest entry of its own (diptych_test(... NEEDS NAME)), and call skip() where it is
// lacking.
#pragma once

#include <cstdio>
#include <string_view>

#include <doctest/doctest.h>
#include <fmt/format.h>

namespace diptych::test {

inline constexpr int kSkipped = 77;  // the exit code that ctest shows as skipped

inline int& skipped_cases() {
  static int count = 0;
  return count;
}

// To be followed by a return. The executable then ends with kSkipped, unless something failed.
inline void skip(std::string_view reason) {
  ++skipped_cases();
  fmt::print(stderr, "skipped: {}: {}\n", doctest::getContextOptions()->currentTest->m_name,
             reason);
}

}  // namespace diptych::test

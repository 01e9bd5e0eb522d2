// What the mains of the test executables share.
#pragma once

#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>

#include "tests/support/skip.h"

namespace diptych::test {

// Runs the cases in inference mode. The exit code is kSkipped where a case was skipped and none
// failed.
inline int run_cases(doctest::Context& context) {
  const c10::InferenceMode inference;
  const int result = context.run();
  return result == 0 && skipped_cases() > 0 ? kSkipped : result;
}

}  // namespace diptych::test

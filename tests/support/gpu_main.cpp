// The main of test executables labelled `gpu`: exit code 77 ("skipped" to ctest) where torch sees
// no GPU, otherwise as main.cpp.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/run.h"

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (!at::hasCUDA()) {  // false in a CPU build, and where the driver shows no device
    fmt::print(stderr, "skipped: torch sees no CUDA device\n");
    return diptych::test::kSkipped;
  }
  return diptych::test::run_cases(context);
}

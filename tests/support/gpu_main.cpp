// The main of test executables labelled `gpu`: exit code 77 ("skipped" to ctest) where torch sees
// no GPU, otherwise as main.cpp.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  doctest::Context context(argc, argv);
  if (!at::hasCUDA()) {  // false in a CPU build, and where the driver shows no device
    fmt::print(stderr, "skipped: torch sees no CUDA device\n");
    return kSkipped;
  }
  const c10::InferenceMode inference;
  return context.run();
}

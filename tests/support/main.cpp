// The main of every test executable: inference mode, and exit code 77 ("skipped") where a GPU test
// finds no GPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <c10/core/InferenceMode.h>

int main(int argc, char** argv) {
  const c10::InferenceMode inference;
  doctest::Context context(argc, argv);
  return context.run();
}

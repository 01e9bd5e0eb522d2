// The main of every test executable: inference mode around all of it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <c10/core/InferenceMode.h>
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  const c10::InferenceMode inference;
  doctest::Context context(argc, argv);
  return context.run();
}

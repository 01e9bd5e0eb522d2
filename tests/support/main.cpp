// The main of every test executable but those labelled `gpu`.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/support/run.h"

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  return diptych::test::run_cases(context);
}

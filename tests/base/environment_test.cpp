#include "lib/base/environment.h"

#include <cstdlib>

#include <doctest/doctest.h>

namespace diptych {
namespace {

TEST_CASE("a variable that is empty is set, one that is absent is nothing") {
  const Environment environment{{{"NAME", "value"}, {"EMPTY", ""}}};
  CHECK(environment("NAME") == "value");
  CHECK(environment("EMPTY") == "");
  CHECK_FALSE(environment("OTHER").has_value());
}

TEST_CASE("the variables of the process, cut at the first =") {
  REQUIRE(setenv("DIPTYCH_TEST_VARIABLE", "a=b", 1) == 0);
  CHECK(process_environment()("DIPTYCH_TEST_VARIABLE") == "a=b");
  REQUIRE(unsetenv("DIPTYCH_TEST_VARIABLE") == 0);
  CHECK_FALSE(process_environment()("DIPTYCH_TEST_VARIABLE").has_value());
}

}  // namespace
}  // namespace diptych

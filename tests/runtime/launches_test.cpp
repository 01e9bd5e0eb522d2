#include "lib/runtime/launches.h"

#include <stdexcept>

#include <ATen/record_function.h>
#include <doctest/doctest.h>

namespace diptych {
namespace {

TEST_CASE("record_launches: work on the CPU launches nothing, and runs once") {
  int runs = 0;
  const auto launches = record_launches("counted", [&] {
    RECORD_USER_SCOPE("counted");
    runs += at::ones({3}).sum().item<int>();
  });
  CHECK_FALSE(launches.has_value());
  CHECK(runs == 3);
}

TEST_CASE("record_launches: what throws leaves no profiler behind") {
  const auto fail = [] { throw std::runtime_error("stop"); };
  CHECK_THROWS_WITH_AS(record_launches("counted", fail), "stop", std::runtime_error);
  CHECK_FALSE(record_launches("counted", [] { at::ones({3}); }).has_value());
}

}  // namespace
}  // namespace diptych

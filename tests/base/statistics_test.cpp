// Percentiles, against values of numpy.percentile.
#include "lib/base/statistics.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

TEST_CASE("percentiles lie between the sorted values") {
  const Spread s = spread_of({5, 1, 4, 2, 10, 3});
  CHECK(s.min == 1);
  CHECK(s.p25 == doctest::Approx(2.25));
  CHECK(s.median == doctest::Approx(3.5));
  CHECK(s.p75 == doctest::Approx(4.75));
  CHECK(s.p90 == doctest::Approx(7.5));
  CHECK(s.max == 10);
  CHECK(s.iqr() == doctest::Approx(2.5));
  CHECK(spread_of({3, 1, 2, 5, 4}).median == 3);
}

TEST_CASE("one value is every percentile of itself") {
  const Spread s = spread_of({0.25});
  for (const double value : {s.min, s.p25, s.median, s.p75, s.p90, s.max}) CHECK(value == 0.25);
  CHECK(s.iqr() == 0);
}

}  // namespace
}  // namespace diptych

#include "lib/session/drafting_report.h"

#include <array>

#include <doctest/doctest.h>

namespace diptych {
namespace {

TEST_CASE("rates of positions add up to the mean; each text counts alike in the mean of means") {
  DraftingReport report{4, {1, 4, 3}};
  CHECK(report.mean() == doctest::Approx(8.0 / 3));
  const auto rates = report.position_rates();
  REQUIRE(rates.size() == 3);
  CHECK(rates[0] == doctest::Approx(2.0 / 3));
  CHECK(rates[1] == doctest::Approx(2.0 / 3));
  CHECK(rates[2] == doctest::Approx(1.0 / 3));
  CHECK(report.histogram() == std::vector<std::int64_t>{0, 1, 0, 1, 1});
  CHECK(report.summary() == "2.67 tokens a verification of 4, accepted 0.67 0.67 0.33");
  const std::array texts = {report, DraftingReport{4, {2}}};
  CHECK(mean_of_means(texts) == doctest::Approx((8.0 / 3 + 2) / 2));
  report.add({8, {8}, true});
  CHECK(report.block_size == 8);
  CHECK(report.acceptance == std::vector<std::int64_t>{1, 4, 3, 8});
  CHECK(report.switched_off);
}

TEST_CASE("nothing that was drafted has no mean") {
  CHECK(DraftingReport{16, {}}.mean() == 0);
  CHECK(DraftingReport{2, {}}.position_rates() == std::vector<double>{0});
  CHECK(mean_of_means({}) == 0);
}

}  // namespace
}  // namespace diptych

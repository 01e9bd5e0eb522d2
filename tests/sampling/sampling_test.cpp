// Expected numbers: the formulas of specs/bagel.md section 7 evaluated with torch 2.11 in Python,
// and the timesteps recorded in golden case 01.
#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/sampling/branches.h"
#include "lib/sampling/schedule.h"

namespace diptych {
namespace {

Tensor matrix(std::vector<float> values) {
  return at::tensor(values).reshape({2, 2});
}
const Tensor kCond = matrix({1, 2, 3, -4});
const Tensor kText = matrix({0.5, -1, 2, 1});
const Tensor kImage = matrix({0, 1, -1, 2});

void check_close(const Tensor& found, const Tensor& expected) {
  CHECK((found - expected).abs().max().item<double>() < 1e-6 * expected.abs().max().item<double>());
}

}  // namespace

TEST_CASE("the shifted schedule has the official code's bits") {
  const FlowSchedule schedule = FlowSchedule::shifted(8, 3.0);
  const std::vector<float> expected = {1.0F,         0.9473683834F, 0.8823528886F, 0.7999999523F,
                                       0.692307711F, 0.5454546213F, 0.333333373F,  0.0F};
  CHECK(schedule.times == expected);
  CHECK(schedule.updates() == 7);
  CHECK(schedule.step_size(6) == 0.333333373F);
  CHECK(FlowSchedule::shifted(2, 1.0).times == std::vector<float>{1, 0});
  CHECK_THROWS_AS(FlowSchedule::shifted(1, 3.0), InputError);
  CHECK(FlowSchedule::shifted(3, 0.001).times.front() == doctest::Approx(1).epsilon(2e-5));
  CHECK_THROWS_WITH_AS(
      FlowSchedule::shifted(3, 1e-12),
      "--timestep-shift: 1e-12 is too extreme for float32: t begins at inf, expected 1",
      InputError);
  for (const double shift : {8.9e-8, 1e-7, 1e40})
    CHECK_THROWS_AS(FlowSchedule::shifted(3, shift), InputError);
}

TEST_CASE("guidance acts in an interval that is open below and closed above") {
  Guidance g;
  CHECK(g.active(1.0F));
  CHECK(g.active(0.41F));
  CHECK_FALSE(g.active(0.4F));  // 0.4 is compared in float32
  g.interval_low = 0.3;
  g.interval_high = 0.8;
  CHECK(g.active(0.8F));
  CHECK_FALSE(g.active(0.81F));
  int active = 0;
  const Guidance plain;
  for (const float t : FlowSchedule::shifted(50, 3.0).times) active += plain.active(t) ? 1 : 0;
  CHECK(active == 41);
}

TEST_CASE("which branches guidance needs") {
  Guidance g;
  CHECK(g.uses_text(1.0F));
  CHECK_FALSE(g.uses_image(1.0F));
  g.image_scale = 1.5;
  CHECK(g.uses_image(1.0F));
  CHECK_FALSE(g.uses_image(0.1F));
  g.text_scale = 1.0;
  CHECK_FALSE(g.uses_text(1.0F));
  CHECK_FALSE(g.uses_image(1.0F));
}

TEST_CASE("combining velocities, each renorm") {
  Guidance g;
  g.image_scale = 1.5;
  SUBCASE("global") {
    check_close(g.combine(kCond, kText, kImage),
                matrix({0.5855177641, 2.4982092381, 1.4833117723, -4.6060733795}));
    check_close(g.combine(kCond, kText, {}),
                matrix({0.5980416536, 2.6313834190, 1.4352999926, -4.5451169014}));
    g.renorm_min = 0.35;
    check_close(g.combine(kCond, kText, kImage), matrix({1.3125, 5.6, 3.325, -10.325}));
  }
  SUBCASE("channel") {
    g.renorm = Renorm::channel;
    check_close(g.combine(kCond, kText, kImage),
                matrix({0.5102513433, 2.1770722866, 1.5326567888, -4.7593026161}));
  }
  SUBCASE("text_channel") {
    g.renorm = Renorm::text_channel;
    check_close(g.combine(kCond, kText, kImage),
                matrix({0.7433397770, 2.7706949711, 2.7584853172, -8.1518707275}));
    g.renorm_min = 0.35;
    check_close(g.combine(kCond, kText, kImage),
                matrix({1.3125, 5.2749996185, 3.6499996185, -10.9749994278}));
  }
  SUBCASE("a floor of 1 disables every renorm") {
    g.renorm_min = 1.0;
    for (const Renorm renorm : {Renorm::global, Renorm::channel, Renorm::text_channel}) {
      g.renorm = renorm;
      check_close(g.combine(kCond, kText, kImage), matrix({3.75, 16, 9.5, -29.5}));
    }
  }
  SUBCASE("without a text branch cond stays as it is") {
    CHECK(g.combine(kCond, {}, {}).equal(kCond));
  }
}

TEST_CASE("the dtype of the guided velocity follows the official code") {
  Guidance g;
  const Tensor c = kCond.to(at::kBFloat16), u = kText.to(at::kBFloat16);
  CHECK(std::string(at::toString(g.combine(c, u, {}).scalar_type())) == "BFloat16");
  g.renorm = Renorm::channel;
  CHECK(std::string(at::toString(g.combine(c, u, {}).scalar_type())) == "Float");
}

TEST_CASE("Euler steps subtract v times the step, and report each") {
  const FlowSchedule schedule = FlowSchedule::shifted(3, 1.0);  // 1, 0.5, 0
  std::vector<std::int64_t> seen;
  const Tensor x = integrate(
      schedule, at::full({2}, 1.0F), [](const Tensor& at_x, std::int64_t) { return 2 * at_x; },
      [&](const Tensor&, std::int64_t i) { seen.push_back(i); });
  CHECK(x.equal(at::zeros({2})));  // 1 - 2 * 0.5 = 0, then 0
  CHECK(seen == std::vector<std::int64_t>{0, 1});
}

}  // namespace diptych

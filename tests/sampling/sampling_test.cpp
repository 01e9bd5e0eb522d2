// Expected numbers: the formulas of specs/bagel.md section 7 evaluated with torch 2.11 in Python,
// and the timesteps recorded in golden case 01.
#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/sampling/branches.h"
#include "lib/sampling/euler.h"
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
  const FlowSchedule none = FlowSchedule::shifted(1, 3.0);
  CHECK(none.times == std::vector<float>{1});
  CHECK(none.updates() == 0);
  CHECK(none.step_sizes().sizes() == at::IntArrayRef{0});
  CHECK_THROWS_AS(FlowSchedule::shifted(0, 3.0), c10::Error);
  CHECK(FlowSchedule::shifted(3, 0.001).times.front() == doctest::Approx(1).epsilon(2e-5));
  CHECK_THROWS_WITH_AS(
      FlowSchedule::shifted(3, 1e-12),
      "--timestep-shift: 1e-12 is too extreme for float32: t begins at inf, expected 1",
      InputError);
  for (const double shift : {8.9e-8, 1e-7, 1e40})
    CHECK_THROWS_AS(FlowSchedule::shifted(3, shift), InputError);
}

// The official code's two scales.
Guidance two_terms(double text_scale = 4, double image_scale = 1) {
  Guidance g;
  g.terms = {{"text_uncond", text_scale}, {"img_uncond", image_scale}};
  g.interval_low = 0.4;
  return g;
}

TEST_CASE("guidance acts in an interval that is open below and closed above") {
  Guidance g = two_terms();
  CHECK(g.active(1.0F));
  CHECK(g.active(0.41F));
  CHECK_FALSE(g.active(0.4F));  // 0.4 is compared in float32
  g.interval_low = 0.3;
  g.interval_high = 0.8;
  CHECK(g.active(0.8F));
  CHECK_FALSE(g.active(0.81F));
  int active = 0;
  const Guidance plain = two_terms();
  for (const float t : FlowSchedule::shifted(50, 3.0).times) active += plain.active(t) ? 1 : 0;
  CHECK(active == 41);
}

TEST_CASE("which branches guidance needs") {
  CHECK(two_terms().terms_at(1.0F) == 1);
  CHECK(two_terms(4, 1.5).terms_at(1.0F) == 2);
  CHECK(two_terms(4, 1.5).terms_at(0.1F) == 0);
  // A term that is off switches off those behind it.
  CHECK(two_terms(1, 1.5).terms_at(1.0F) == 0);
  CHECK(Guidance{}.terms_at(1.0F) == 0);
}

TEST_CASE("combining velocities, each renorm") {
  Guidance g = two_terms(4, 1.5);
  const std::vector<Tensor> both = {kText, kImage}, text = {kText};
  SUBCASE("global") {
    check_close(g.combine(kCond, both),
                matrix({0.5855177641, 2.4982092381, 1.4833117723, -4.6060733795}));
    check_close(g.combine(kCond, text),
                matrix({0.5980416536, 2.6313834190, 1.4352999926, -4.5451169014}));
    g.renorm_min = 0.35;
    check_close(g.combine(kCond, both), matrix({1.3125, 5.6, 3.325, -10.325}));
  }
  SUBCASE("channel") {
    g.renorm = Renorm::channel;
    check_close(g.combine(kCond, both),
                matrix({0.5102513433, 2.1770722866, 1.5326567888, -4.7593026161}));
  }
  SUBCASE("text_channel") {
    g.renorm = Renorm::text_channel;
    check_close(g.combine(kCond, both),
                matrix({0.7433397770, 2.7706949711, 2.7584853172, -8.1518707275}));
    g.renorm_min = 0.35;
    check_close(g.combine(kCond, both),
                matrix({1.3125, 5.2749996185, 3.6499996185, -10.9749994278}));
  }
  SUBCASE("a floor of 1 disables every renorm") {
    g.renorm_min = 1.0;
    for (const Renorm renorm : {Renorm::global, Renorm::channel, Renorm::text_channel}) {
      g.renorm = renorm;
      check_close(g.combine(kCond, both), matrix({3.75, 16, 9.5, -29.5}));
    }
  }
  SUBCASE("without a text branch cond stays as it is") {
    CHECK(g.combine(kCond, {}).equal(kCond));
  }
}

TEST_CASE("the dtype of the guided velocity follows the official code") {
  Guidance g = two_terms();
  const Tensor c = kCond.to(at::kBFloat16);
  const std::vector<Tensor> u = {kText.to(at::kBFloat16)};
  CHECK(std::string(at::toString(g.combine(c, u).scalar_type())) == "BFloat16");
  g.renorm = Renorm::channel;
  CHECK(std::string(at::toString(g.combine(c, u).scalar_type())) == "Float");
}

TEST_CASE("three terms act one behind the other") {
  Guidance g = two_terms(2, 3);
  g.terms.push_back({"third", 1.5});
  g.renorm_min = 1;  // no renorm
  const auto value = [](double x) { return at::full({1, 1}, x, at::kFloat); };
  const std::vector<Tensor> branches = {value(1), value(2), value(4)};
  CHECK(g.terms_at(1.0F) == 3);
  // 1 + 2 * (3 - 1) = 5; 2 + 3 * (5 - 2) = 11; 4 + 1.5 * (11 - 4) = 14.5.
  CHECK(g.combine(value(3), branches).item<float>() == 14.5F);
}

TEST_CASE("Euler steps subtract v times the step") {
  const Tensor sizes = FlowSchedule::shifted(3, 1.0).step_sizes();
  CHECK(sizes.equal(at::tensor({0.5F, 0.5F})));
  const Tensor x = at::full({2}, 1.0F);
  for (std::int64_t i = 0; i < 2; ++i) euler_step_(x, 2 * x, sizes.narrow(0, i, 1));
  CHECK(x.equal(at::zeros({2})));  // 1 - 2 * 0.5 = 0, then 0
}

TEST_CASE("the product of an Euler step is rounded to the velocity's dtype") {
  const Tensor v = at::full({1}, 1.0F + 1.0F / 128, at::kBFloat16);
  const Tensor size = at::full({1}, 0.7F), x = at::full({1}, 2.0F);
  euler_step_(x, v, size);
  const float product = (v.to(at::kFloat) * 0.7F).to(at::kBFloat16).to(at::kFloat).item<float>();
  CHECK(x.item<float>() == 2.0F - product);
  // As a Python number multiplies, not a bfloat16 one.
  CHECK(product == (v * 0.7).to(at::kFloat).item<float>());
  CHECK(product != (v * size.to(at::kBFloat16)).to(at::kFloat).item<float>());
}

}  // namespace diptych

// Guidance of video models against recorded steps.
#include "lib/sampling/video_guidance.h"

#include <cmath>

#include <fmt/format.h>

#include "tests/sampling/recorded.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

const Setting kSetting = Setting::of("cfg_gate_step");

}  // namespace

TEST_CASE("guidance is rescaled as recorded") {
  for (const auto& folder : test::recorded_guidance("t2v_guidance_rescale")) {
    CAPTURE(folder.string());
    const auto file = test::expected_of(folder);
    const auto info = test::case_json(folder);
    const double tolerance = info.at("tolerance").at("step_tensors");
    const double phi = info.at("parameters").at("guidance_rescale");
    const double scale = info.at("parameters").at("guidance_scale");
    for (const int step : {0, 5}) {
      const auto recorded = [&](const char* what) {
        return file.view(fmt::format("step{:03}.{}", step, what));
      };
      const Tensor cond = recorded("v_cond");
      const Tensor guided = guide(cond, recorded("v_uncond"), scale);
      CHECK(test::largest_difference(guided, recorded("v_guided")) < tolerance);
      const Tensor rescaled = rescale_guidance(guided, cond, phi);
      CHECK(test::largest_difference(rescaled, recorded("v_rescaled")) < tolerance);
      CHECK_FALSE(rescaled.equal(guided));
    }
  }
}

TEST_CASE("each clip of a batch is rescaled by its own spread, with n - 1") {
  // Spreads of the first: 1 and 2, of the second: 3 and 1.
  const Tensor cond = at::tensor({-1.F, 0.F, 1.F, -3.F, 0.F, 3.F}).reshape({2, 1, 3});
  const Tensor guided = at::tensor({-2.F, 0.F, 2.F, -1.F, 0.F, 1.F}).reshape({2, 1, 3});
  CHECK(rescale_guidance(guided, cond, 1).equal(cond));
  const Tensor half = rescale_guidance(guided, cond, 0.5);
  CHECK(half.equal(at::tensor({-1.5F, 0.F, 1.5F, -2.F, 0.F, 2.F}).reshape({2, 1, 3})));
  CHECK(rescale_guidance(guided, cond, 0).equal(guided));
}

TEST_CASE("Cosmos' guidance counts from the conditional branch") {
  const Tensor cond = at::tensor({3.F, -1.F}), uncond = at::tensor({1.F, 1.F});
  CHECK(guide_x0(cond, uncond, 7).equal(at::tensor({17.F, -15.F})));
  CHECK(guide_x0(cond, uncond, 7).equal(guide(cond, uncond, 8)));
  CHECK(guide(cond.to(at::kBFloat16), uncond.to(at::kBFloat16), 2).dtype() == at::kBFloat16);
}

TEST_CASE("the gate keeps the difference until the expert changes") {
  for (const auto& folder : test::recorded_guidance("t2v_a14b_gate_across_experts")) {
    CAPTURE(folder.string());
    const auto file = test::expected_of(folder);
    const auto info = test::case_json(folder);
    const double tolerance = info.at("tolerance").at("step_tensors");
    GuidanceGate gate(info.at("parameters").at("FASTVIDEO_CFG_GATE_STEP"),
                      info.at("parameters").at("num_inference_steps"), kSetting);
    for (int clip = 0; clip < 2; ++clip) {
      for (const auto& step : info.at("steps_info")) {
        const std::int64_t i = step.at("step");
        const auto recorded = [&](const char* what) {
          return file.view(fmt::format("step{:03}.{}", i, what));
        };
        const std::int64_t expert = step.at("model") == "transformer" ? 0 : 1;
        const bool computes = gate.begin_step(i, expert);
        CHECK(computes == step.at("uncond_computed").get<bool>());
        const Tensor guided =
            gate.guide(recorded("v_cond"), computes ? recorded("v_uncond") : Tensor(),
                       step.at("guidance").get<double>());
        CHECK(test::largest_difference(guided, recorded("v_guided")) < tolerance);
      }
      CHECK((gate.counters() == GuidanceGate::Counters{3, 5, 1}));
      gate.reset();
    }
  }
}

TEST_CASE("how many steps compute both branches") {
  const auto fresh = [](double fraction, std::int64_t steps) {
    GuidanceGate gate(fraction, steps, kSetting);
    const Tensor v = at::ones({1, 2});
    for (std::int64_t i = 0; i < steps; ++i) {
      const bool computes = gate.begin_step(i, 0);
      gate.guide(v, computes ? at::zeros({1, 2}) : Tensor(), 5);
    }
    CHECK(gate.counters().fresh + gate.counters().reused == steps);
    CHECK(gate.counters().invalidations == 0);
    return gate.counters().fresh;
  };
  CHECK(fresh(0.5, 8) == 4);
  CHECK(fresh(0.5, 7) == 3);
  CHECK(fresh(0, 8) == 1);  // there is no difference yet
  CHECK(fresh(1, 8) == 8);
  CHECK(fresh(0.99, 8) == 7);
  CHECK(GuidanceGate(0.99, 8, kSetting).on());
  CHECK_FALSE(GuidanceGate(1, 8, kSetting).on());
}

TEST_CASE("a gate outside 0 to 1 is refused by its name") {
  const auto refusal = [](double fraction) {
    return test::message_of([&] { GuidanceGate(fraction, 8, kSetting); });
  };
  CHECK(refusal(1.5) == "--cfg-gate-step: found 1.5, expected a number from 0 to 1");
  CHECK(refusal(-0.1) == "--cfg-gate-step: found -0.1, expected a number from 0 to 1");
  CHECK(refusal(std::nan("")) == "--cfg-gate-step: found nan, expected a number from 0 to 1");
}

}  // namespace diptych

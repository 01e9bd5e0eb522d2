// TeaCache for Wan against recorded decisions and polynomials.
#include <cmath>
#include <map>

#include "lib/base/error.h"
#include "lib/pipelines/wan/teacache.h"
#include "tests/sampling/recorded.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

using Branch = TimestepTeaCacheRule::Branch;

TimestepTeaCacheConfig config_of(const nlohmann::json& recorded) {
  TimestepTeaCacheConfig config;
  config.coefficients = recorded.at("coefficients").get<StepCacheCoefficients>();
  config.threshold = recorded.at("thresh");
  config.use_ret_steps = recorded.at("use_ret_steps");
  config.ret_steps = recorded.at("ret_steps").get<std::int64_t>() / 2;  // recorded as calls
  return config;
}

}  // namespace

TEST_CASE("the published polynomials of Wan") {
  const auto folder =
      std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/wan/cases/teacache_polynomials";
  const auto info = test::case_json(folder);
  const auto file = test::expected_of(folder);
  const double tolerance = info.at("tolerance").at("relative");
  const Tensor changes = file.view("rel_l1");
  const std::map<std::string, WanTeaCacheModel> models = {
      {"T2V_1_3B", WanTeaCacheModel::t2v_1_3b},
      {"T2V_14B", WanTeaCacheModel::t2v_14b},
      {"I2V_14B_480P_upstream", WanTeaCacheModel::i2v_14b_480p},
      {"I2V_14B_720P_upstream", WanTeaCacheModel::i2v_14b_720p}};
  for (const auto& [name, model] : models) {
    CAPTURE(name);
    const auto& recorded = info.at("coefficients").at(name);
    const TimestepTeaCacheConfig preset = preset_teacache(model);
    CHECK(preset.threshold == recorded.at("thresh").get<double>());
    CHECK(preset.use_ret_steps == recorded.value("use_ret_steps", true));
    for (const bool ret : {true, false}) {
      const auto config = published_teacache(model, ret);
      config.check();
      CHECK(config.ret_steps == (ret ? 5 : 1));
      const Tensor expected = file.view(name + (ret ? ".ret.poly" : ".non_ret.poly"));
      for (std::int64_t i = 0; i < changes.numel(); ++i) {
        const double value = expected[i].item<double>();
        CHECK(std::abs(evaluate(config.coefficients, changes[i].item<double>()) - value) <=
              tolerance * std::abs(value));
      }
    }
  }
}

TEST_CASE("calls are computed as recorded") {
  for (const char* name : {"t2v_teacache", "t2v_teacache_ret_steps"}) {
    CAPTURE(name);
    const auto info = test::case_json(test::recorded_guidance(name).front());
    const auto& parameters = info.at("parameters");
    TimestepTeaCacheRule rule(config_of(parameters.at("teacache")),
                              parameters.at("num_inference_steps"));
    for (int clip = 0; clip < 2; ++clip) {
      for (const auto& call : info.at("steps_info")) {
        const Branch branch = call.at("branch") == "cond" ? Branch::cond : Branch::uncond;
        bool asked = false;
        const bool computed = rule.begin_call(call.at("step"), branch, [&] {
          asked = true;
          return call.at("rel_l1").get<double>();
        });
        CAPTURE(call.dump());
        CHECK(asked == !call.at("rel_l1").is_null());
        CHECK(computed == call.at("computed").get<bool>());
        CHECK(rule.sum(branch) == doctest::Approx(call.at("accumulated_after").get<double>()));
      }
      rule.reset();
    }
  }
}

TEST_CASE("a plan decides as the rule does, from the modulations alone") {
  TimestepTeaCacheConfig config;
  config.coefficients = {0, 0, 0, 1, 0};
  config.threshold = 0.5;
  config.ret_steps = 2;
  // Changes, from step 1 on: 1/1, 0.5/2, 0.75/2.5, 0.25/3.25, 3.5/3.5, 0.
  const Tensor levels = at::tensor({1.F, 2.F, 2.5F, 3.25F, 3.5F, 7.F, 7.F});
  const Tensor modulations = levels.unsqueeze(1).expand({7, 3});
  CHECK(plan_timestep_teacache(config, modulations) ==
        std::vector<bool>{true, true, false, true, false, true, false});
  config.use_ret_steps = false;  // the last one is computed, too
  config.ret_steps = 1;
  CHECK(plan_timestep_teacache(config, modulations) ==
        std::vector<bool>{true, true, false, true, false, true, true});
}

TEST_CASE("an estimate that is no number computes") {
  TimestepTeaCacheRule rule(preset_teacache(WanTeaCacheModel::t2v_14b), 10);
  CHECK(rule.begin_call(0, Branch::cond, [] { return 0.0; }));
  CHECK(rule.begin_call(1, Branch::cond, [] { return std::nan(""); }));
  CHECK(rule.sum(Branch::cond) == 0);
}

TEST_CASE("TeaCache for Wan needs a threshold and coefficients") {
  TimestepTeaCacheConfig config = preset_teacache(WanTeaCacheModel::t2v_1_3b);
  config.threshold = 0;
  CHECK(test::message_of([&] { TimestepTeaCacheRule(config, 5); }) ==
        "teacache: threshold: found 0, expected a positive number");
  config = {};
  config.threshold = 1;
  CHECK_THROWS_AS(TimestepTeaCacheRule(config, 5), InputError);
}

TEST_CASE("what computed steps added is kept by context") {
  StepResiduals residuals;
  const Tensor input = at::tensor({1.F, 2.F}), output = at::tensor({4.F, 8.F});
  residuals.store(1, input, output);
  CHECK(residuals.predict(1, 2 * input).equal(at::tensor({5.F, 10.F})));
  CHECK_THROWS_AS(residuals.predict(0, input), c10::Error);
  CHECK_THROWS_AS(residuals.predict(2, input), c10::Error);
  residuals.clear();
  CHECK_THROWS_AS(residuals.predict(1, input), c10::Error);
}

}  // namespace diptych

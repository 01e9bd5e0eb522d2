// Tables and solvers of video models against those of diffusers, the Wan repository, FastVideo and
// vllm-omni.
#include "lib/sampling/flow_solver.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "tests/sampling/recorded.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

const std::filesystem::path kGoldens = std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens";

const std::map<std::string, FlowSampler> kRecordedNames = {
    {"diffusers_unipc", FlowSampler::unipc},
    {"official_flow_unipc", FlowSampler::unipc_official},
    {"fastvideo_flow_unipc", FlowSampler::unipc_fastvideo},
    {"diffusers_flow_match_euler", FlowSampler::euler},
    {"omni_wan_euler", FlowSampler::euler_omni},
};

// How many float32 numbers lie between two positive ones.
std::int64_t ulps(float a, float b) {
  return std::abs(std::int64_t{std::bit_cast<std::int32_t>(a)} - std::bit_cast<std::int32_t>(b));
}

std::int64_t most_ulps(const std::vector<float>& found, const std::vector<float>& expected) {
  REQUIRE(found.size() == expected.size());
  std::int64_t most = 0;
  for (std::size_t i = 0; i < found.size(); ++i) most = std::max(most, ulps(found[i], expected[i]));
  return most;
}

// "shift12" -> 12
std::int64_t number_behind(const std::string& text, const std::string& word) {
  const auto begin = text.find(word) + word.size();
  std::int64_t value = 0;
  std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return value;
}

struct Run {
  FlowSampler sampler;
  std::int64_t steps;
  double shift;
  UniPcOptions options;
};

Run run_of(const std::string& name) {
  Run run;
  for (const auto& [recorded, sampler] : kRecordedNames) {
    if (name.starts_with(recorded)) run.sampler = sampler;
  }
  run.steps = number_behind(name, "steps");
  run.shift = static_cast<double>(number_behind(name, "shift"));
  if (name.find("order3") != std::string::npos) run.options.solver_order = 3;
  return run;
}

FlowSolver solver_of(const Run& run) {
  return make_flow_solver(run.sampler, run.steps, run.shift, run.options);
}

}  // namespace

TEST_CASE("tables of Wan's samplers have the front ends' bits") {
  const auto file = test::expected_of(kGoldens / "wan/cases/scheduler_tables");
  int tables = 0;
  std::int64_t most = 0;
  for (const auto& [name, entry] : file.entries()) {
    if (!name.ends_with(".sigmas")) continue;
    CAPTURE(name);
    const Run run = run_of(name);
    const FlowTable table = make_flow_table(run.sampler, run.steps, run.shift);
    const std::string stem = name.substr(0, name.size() - std::string("sigmas").size());
    const auto sigma_ulps = most_ulps(table.sigmas, test::floats(file.view(name)));
    CHECK(sigma_ulps <= 1);
    most = std::max(most, sigma_ulps);
    CHECK(table.timesteps == test::floats(file.view(stem + "timesteps")));
    ++tables;
  }
  CHECK(tables == 125);
  MESSAGE("largest difference of a level, in units of the last place: ", most);
}

TEST_CASE("Cosmos' levels fall as those of Karras, and the last is there twice") {
  const auto file = test::expected_of(kGoldens / "cosmos/cases/scheduler_tables");
  for (const std::int64_t steps : {5, 10, 20, 35, 50}) {
    CAPTURE(steps);
    const auto recorded = [&](const char* what) {
      return test::floats(file.view(fmt::format("karras.steps{:02}.{}", steps, what)));
    };
    const FlowTable table = make_flow_table(FlowSampler::euler_karras, steps, 1);
    CHECK(most_ulps(table.sigmas, recorded("sigmas")) <= 2);
    CHECK(most_ulps(table.timesteps, recorded("timesteps")) <= 2);
    std::vector<float> times;
    for (const float sigma : table.sigmas) times.push_back(EdmPreconditioning::of(sigma).t);
    CHECK(most_ulps(times, recorded("t_model")) <= 2);
    const auto last = table.sigmas.size() - 1;
    CHECK(table.sigmas[last] == table.sigmas[last - 1]);
  }
  const EdmPreconditioning scaling = EdmPreconditioning::of(3);
  CHECK(scaling.t == 0.75F);
  CHECK(scaling.c_in == 0.25F);
  CHECK(scaling.c_skip == 0.25F);
  CHECK(scaling.c_out == -0.75F);
}

TEST_CASE("solvers take the recorded ways") {
  const auto folder = kGoldens / "wan/cases/scheduler_trajectories";
  const double tolerance = test::case_json(folder).at("tolerance").at("samples");
  const auto inputs = SafetensorsFile::open(folder / "inputs.safetensors");
  const auto expected = test::expected_of(folder);
  for (const char* name :
       {"diffusers_unipc_shift3_steps10", "diffusers_unipc_shift12_steps30",
        "diffusers_unipc_order3_shift5_steps12", "fastvideo_flow_unipc_shift3_steps10",
        "diffusers_flow_match_euler_shift5_steps8"}) {
    CAPTURE(name);
    const std::string stem = std::string(name) + ".";
    FlowSolver solver = solver_of(run_of(name));
    CHECK(most_ulps(solver.sigmas(), test::floats(expected.view(stem + "sigmas"))) <= 1);
    CHECK(solver.timesteps() == test::floats(expected.view(stem + "timesteps")));
    const Tensor outputs = inputs.view(stem + "model_outputs");
    const Tensor samples = expected.view(stem + "samples");
    double most = 0;
    for (int clip = 0; clip < 2; ++clip) {
      Tensor x = inputs.view(stem + "sample0");
      for (std::int64_t i = 0; i < solver.steps(); ++i) {
        x = solver.step(i, outputs[i], x);
        most = std::max(most, test::largest_difference(x, samples[i]));
      }
      solver.reset();
    }
    CHECK(most < tolerance);
    MESSAGE(name, ": largest difference ", most);
  }
}

TEST_CASE("what UniPC shows of a step") {
  for (const auto& folder : test::recorded_guidance("t2v_a14b_gate_across_experts")) {
    CAPTURE(folder.string());
    const auto file = test::expected_of(folder);
    const auto info = test::case_json(folder);
    const double tolerance = info.at("tolerance").at("step_tensors");
    const auto& parameters = info.at("parameters");
    const std::int64_t steps = parameters.at("num_inference_steps");
    FlowSolver solver = make_flow_solver(FlowSampler::unipc, steps, parameters.at("flow_shift"));
    Tensor x = SafetensorsFile::open(folder / "inputs.safetensors").view("initial_latents");
    for (std::int64_t i = 0; i < steps; ++i) {
      const auto recorded = [&](const char* what) {
        return file.view(fmt::format("step{:03}.{}", i, what));
      };
      x = solver.step(i, recorded("v_guided"), x);
      REQUIRE(solver.unipc() != nullptr);
      CHECK(test::largest_difference(solver.unipc()->x0(), recorded("x0_pred")) < tolerance);
      CHECK(test::largest_difference(solver.unipc()->corrected(), recorded("corrected_sample")) <
            tolerance);
      CHECK(test::largest_difference(x, recorded("latent")) < tolerance);
      const auto& step = solver.unipc()->schedule().steps[static_cast<std::size_t>(i)];
      CHECK(step.predictor_order == recorded("predictor_order").item<std::int64_t>());
    }
    CHECK(x.equal(solver.unipc()->x0()));  // the last level is 0
  }
}

TEST_CASE("an exact velocity field ends at the clip, whatever the solver") {
  const Tensor clip = at::tensor({0.5F, -2.0F, 0.25F}), noise = at::tensor({-1.0F, 0.125F, 3.0F});
  for (const FlowSampler sampler :
       {FlowSampler::unipc, FlowSampler::unipc_official, FlowSampler::unipc_fastvideo,
        FlowSampler::euler, FlowSampler::euler_omni}) {
    for (const std::int64_t steps : {1, 2, 3, 7}) {
      for (const double shift : {0.5, 5.0}) {
        CAPTURE(name_of(sampler));
        CAPTURE(steps);
        FlowSolver solver = make_flow_solver(sampler, steps, shift);
        const float first = solver.sigmas().front();
        Tensor x = clip + first * (noise - clip);
        for (std::int64_t i = 0; i < steps; ++i) x = solver.step(i, noise - clip, x);
        CHECK(test::largest_difference(x, clip) < 2e-6);
      }
    }
  }
}

TEST_CASE("velocities of a narrower dtype are taken as float32") {
  for (const FlowSampler sampler : {FlowSampler::unipc, FlowSampler::euler}) {
    FlowSolver narrow = make_flow_solver(sampler, 2, 3), wide = make_flow_solver(sampler, 2, 3);
    const Tensor v = at::tensor({1.0F + 1.0F / 128, -0.3F}).to(at::kBFloat16);
    const Tensor x = at::tensor({2.0F, 0.7F});
    const Tensor found = narrow.step(0, v, x);
    CHECK((found.scalar_type() == at::kFloat));
    CHECK(found.equal(wide.step(0, v.to(at::kFloat), x)));
  }
}

TEST_CASE("a step whose correction is disabled begins from its sample") {
  UniPcOptions options;
  options.disable_corrector = {0, 2};
  const UniPcSchedule schedule = make_unipc_schedule(FlowSampler::unipc, 5, 3, options);
  std::vector<bool> corrects;
  for (const UniPcStep& step : schedule.steps) corrects.push_back(step.corrects);
  CHECK(corrects == std::vector<bool>{false, false, true, false, true});
  UniPcState state(schedule);
  const Tensor x = at::tensor({1.0F, -1.0F}), v = at::tensor({0.25F, 0.5F});
  const Tensor second = state.step(0, v, x);
  const Tensor third = state.step(1, 2 * v, second);
  CHECK(state.corrected().equal(second));
  state.step(2, v, third);
  CHECK_FALSE(state.corrected().equal(third));
}

TEST_CASE("orders rise from 1 and fall to 1 at the end") {
  UniPcOptions options;
  options.solver_order = 3;
  std::vector<std::int64_t> orders;
  for (const UniPcStep& step : make_unipc_schedule(FlowSampler::unipc, 6, 5, options).steps)
    orders.push_back(step.predictor_order);
  CHECK(orders == std::vector<std::int64_t>{1, 2, 3, 3, 2, 1});
}

TEST_CASE("what solvers refuse") {
  const auto refusal = [](const UniPcOptions& options) {
    return test::message_of([&] { make_flow_solver(FlowSampler::unipc, 4, 3, options); });
  };
  UniPcOptions options;
  options.solver_type = "bh1";
  CHECK(refusal(options) ==
        "solver_type: found \"bh1\", expected \"bh2\": bh1 ends in NaN where the last level is 0");
  options.solver_type = "midpoint";
  CHECK(refusal(options) == "solver_type: found \"midpoint\", expected \"bh2\"");
  options = {};
  options.solver_order = 4;
  CHECK(refusal(options) == "solver_order: found 4, expected 1 to 3");
  options = {};
  options.lower_order_final = false;
  CHECK(refusal(options) ==
        "lower_order_final: found false, expected true: a last step of order 2 ends in NaN");
  options.solver_order = 1;
  CHECK(refusal(options) == "no error");
  options = {};
  options.disable_corrector = {-1};
  CHECK(refusal(options) == "disable_corrector: found -1, expected steps from 0 on");

  const auto shift_refusal = [](double shift) {
    return test::message_of([&] { make_flow_solver(FlowSampler::unipc, 4, shift); });
  };
  for (const double shift : {0.0, -1.0, std::nan(""), HUGE_VAL})
    CHECK(shift_refusal(shift).ends_with(", expected a number above 0"));
  CHECK(shift_refusal(1e9) == "--timestep-shift: 1000000000 is too extreme for 4 steps in float32");
  for (const double shift : {1e-300, 1e300}) CHECK(shift_refusal(shift) != "no error");
  CHECK_THROWS_AS(make_flow_solver(FlowSampler::euler, 0, 3), c10::Error);
}

TEST_CASE("UniPC's steps come in order") {
  UniPcState state(make_unipc_schedule(FlowSampler::unipc, 2, 3));
  const Tensor x = at::zeros({2});
  CHECK_THROWS_AS(state.step(1, x, x), c10::Error);
  state.step(0, x, x);
  CHECK_THROWS_AS(state.step(0, x, x), c10::Error);
  state.step(1, x, x);
  CHECK_THROWS_AS(state.step(2, x, x), c10::Error);
}

}  // namespace diptych

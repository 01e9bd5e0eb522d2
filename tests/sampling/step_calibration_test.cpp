// Expected coefficients: the normal equations of the same samples solved in exact fractions.
#include "lib/sampling/step_cache/step_calibration.h"

#include <cmath>
#include <fstream>
#include <functional>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

std::vector<StepChange> curved_samples() {
  std::vector<StepChange> samples;
  for (int i = 0; i < 24; ++i) {
    const double x = (i * 7 % 24 + 1) / 100.0;
    samples.push_back({x, 0.02 + 0.5 * x + 3 * x * x + (i * 5 % 7 - 3) / 400.0});
  }
  return samples;
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

fs::path file_with(const std::string& text) {
  const fs::path folder = fs::temp_directory_path() / "diptych_step_calibration_test";
  fs::create_directories(folder);
  std::ofstream(folder / "c.json") << text;
  return folder / "c.json";
}

}  // namespace

TEST_CASE("the polynomial with the least squared error") {
  const auto calibration = StepCalibration::fit(curved_samples(), "abc");
  const std::vector<double> expected = {-18.210955710956018, 17.20345877954587, -2.394491529002418,
                                        1.1046920219474576, 0.003311511857707498};
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(calibration.coefficients[i] == doctest::Approx(expected[i]).epsilon(1e-9));
  }
  CHECK(evaluate(calibration.coefficients, 0.1) == doctest::Approx(0.10521816197087936));
  CHECK(evaluate(calibration.coefficients, 0.24) == doctest::Approx(0.30791591880341866));
  CHECK(calibration.explained_variance() == doctest::Approx(0.9991460553762901));
}

TEST_CASE("a polynomial's own values give it back, whatever their size") {
  const StepCacheCoefficients true_ones = {1.3e6, -1.7e5, 8e3, -164, 3.3};
  std::vector<StepChange> samples;
  for (int i = 0; i < 40; ++i) {
    const double x = 0.01 + i * 1e-3;
    samples.push_back({x, evaluate(true_ones, x)});
  }
  const auto calibration = StepCalibration::fit(samples, "abc");
  CHECK(calibration.coefficients[0] == doctest::Approx(1.3e6).epsilon(1e-6));
  CHECK(calibration.coefficients[4] == doctest::Approx(3.3).epsilon(1e-6));
  CHECK(calibration.explained_variance() == doctest::Approx(1));
}

TEST_CASE("a fit that would be of no use is refused") {
  const auto fitting = [](std::vector<StepChange> samples) {
    return refusal([&] { StepCalibration::fit(std::move(samples), "abc"); });
  };
  std::vector<StepChange> samples = curved_samples();
  samples.resize(19);
  CHECK(fitting(samples) ==
        "calibration: samples: found 19, expected at least 20 (more steps or prompts)");
  samples = curved_samples();
  samples[3].output = NAN;
  CHECK(fitting(samples).starts_with("calibration: samples: found [0.22, nan] at 3"));
  samples = curved_samples();
  samples[5].input = -0.1;
  CHECK(fitting(samples).starts_with("calibration: samples: found [-0.1, "));
  for (auto& sample : samples = curved_samples()) sample.input = 0.2;
  CHECK(fitting(samples).starts_with("calibration: the input changes by nearly the same"));
  for (auto& sample : samples = curved_samples()) sample.input = 0;
  CHECK(fitting(samples).starts_with("calibration: the input changes by nearly the same"));
  samples = curved_samples();
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i].output = i % 2 == 0 ? 0.1 : 0.9;
  const std::string unrelated = fitting(samples);
  CAPTURE(unrelated);
  CHECK(unrelated.starts_with("calibration: the input's changes explain 0."));
  CHECK(unrelated.ends_with(
      "does not follow them; other prompts, more of them or more --steps may do"));
}

TEST_CASE("changes are those from one step of a context to its next") {
  const auto rows = [](double value) { return at::full({3, 2}, value, at::kBFloat16); };
  StepChangeRecorder recorder;
  CHECK_THROWS_AS(recorder.record(0, 0, rows(4), rows(10)), c10::Error);
  recorder.begin_picture();
  recorder.record(0, 0, rows(4), rows(10));
  recorder.record(0, 1, rows(4), rows(8));
  recorder.record(1, 0, rows(5), rows(9));
  recorder.record(2, 0, rows(4), rows(9));
  recorder.record(2, 1, rows(4), rows(1));  // behind a gap
  recorder.record(3, 1, rows(3), rows(-1));
  const StepRecording& recording = recorder.recording();
  CHECK((recording.changes == std::vector<StepChange>{{0.25, 0.1F}, {0.2F, 0}, {0.25, 2}}));
  recorder.begin_picture();
  recorder.record(4, 1, rows(3), rows(1));
  recorder.record(6, 1, rows(4), rows(1));  // behind a gap
  CHECK(recording.changes.size() == 3);
  REQUIRE(recording.pictures.size() == 2);
  std::vector<std::int64_t> contexts;
  std::vector<double> changes;
  for (const auto& [change, count] : recording.pictures[0]) {
    contexts.push_back(count);
    changes.push_back(change);
  }
  CHECK(contexts == std::vector<std::int64_t>{2, 1, 2, 1});
  CHECK(std::isnan(changes[0]));
  changes.erase(changes.begin());
  CHECK(changes == std::vector<double>{0.25, 0.2F, 0.25});
  REQUIRE(recording.pictures[1].size() == 2);
  CHECK(std::isnan(recording.pictures[1][1].change));
  CHECK(recording.steps() == 6);
}

TEST_CASE("what TeaCache would compute of recorded steps") {
  // Changes 1/10, 1/11, 1/12, ... with an estimate that is the change itself, as in TeaCache's own
  // test; in a second picture guidance sets in at step 4.
  StepChangeRecorder recorder;
  const auto record = [&](std::int64_t from) {
    recorder.begin_picture();
    const std::vector<double> inputs = {10, 11, 12, 13, 14, 15, 16, 16, 16.1, 16.2};
    for (std::int64_t step = 0; step < std::ssize(inputs); ++step) {
      const Tensor rows = at::full({2, 2}, inputs[static_cast<std::size_t>(step)]);
      for (std::int64_t context = 0; context < (step < from ? 1 : 2); ++context)
        recorder.record(step, context, rows, rows);
    }
  };
  record(0);
  const StepCacheCoefficients identity = {0, 0, 0, 1, 0};
  CHECK(recorder.recording().computed_steps(0.2, identity) == 4);  // 0, 3, 6 and 9
  CHECK(recorder.recording().computed_steps(1e9, identity) == 2);
  CHECK(recorder.recording().computed_steps(1e-9, identity) == 9);  // step 7 changes nothing
  record(4);
  CHECK(recorder.recording().steps() == 20);
  CHECK(recorder.recording().computed_steps(1e9, identity) == 2 + 3);
  // 0, 3, 4 (guidance sets in) and 9.
  CHECK(recorder.recording().computed_steps(0.2, identity) == 4 + 4);
}

TEST_CASE("a calibration survives its file to the last bit") {
  const auto written = StepCalibration::fit(curved_samples(), "0123abc-def");
  const fs::path path = file_with("");
  written.write(path);
  const auto read = StepCalibration::read(path);
  CHECK(read.coefficients == written.coefficients);
  CHECK((read.samples == written.samples));
  CHECK(read.weights_hash == "0123abc-def");
  read.require_weights(path, "0123abc-def");
  CHECK(refusal([&] { read.require_weights("c.json", "other"); }) ==
        "c.json: weights_hash: measured on 0123abc-def, the loaded weights are other");
}

TEST_CASE("broken calibration files are refused by file and key") {
  const fs::path path = file_with("");
  StepCalibration::fit(curved_samples(), "abc").write(path);
  const auto good = nlohmann::json::parse(std::ifstream(path));
  const auto reading = [&](const std::string& text) {
    file_with(text);
    const std::string said = refusal([&] { StepCalibration::read(path); });
    CHECK(said.starts_with(path.string() + ":"));
    const std::size_t name = path.string().size() + 1;
    return said.substr(said[name] == ' ' ? name + 1 : name);
  };
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto changed = good;
    changed[key] = value;
    return reading(changed.dump());
  };
  CHECK(reading("{") == "1:2: ends within its JSON: truncated?");
  CHECK(reading("[1]") == "is not a JSON object");
  CHECK(with("schema", "other") ==
        "schema: found \"other\", expected \"diptych.step_calibration\"");
  CHECK(with("version", 2) == "version: found 2, expected 1");
  CHECK(with("version", "1") == "version: found \"1\", expected 1");
  CHECK(with("weights_hash", "") == "weights_hash: found \"\", expected a text");
  CHECK(with("weights_hash", 7) == "weights_hash: found 7, expected a text");
  CHECK(with("coefficients", {1, 2, 3, 4}) == "coefficients: found [1,2,3,4], expected 5 numbers");
  CHECK(with("coefficients", {1, 2, 3, 4, "5"}).starts_with("coefficients: found [1,2,3,4,\"5\"]"));
  CHECK(with("coefficients", {0, 0, 0, 1, 9}).starts_with("coefficients: explain -"));
  CHECK(with("samples", 3) == "samples: found 3, expected a list of pairs");
  CHECK(with("samples", {{1, 2}, {3}}) == "samples: found [3], expected 2 numbers");
  CHECK(with("samples", {{1, 2}}).starts_with("samples: found 1, expected at least 20"));
  CHECK(with("sample", 1).starts_with("sample: unknown key (known: schema, "));
  auto missing = good;
  missing.erase("coefficients");
  CHECK(reading(missing.dump()) == "coefficients: missing");
  const std::string text = good.dump();
  CHECK(reading(R"({"version": 1, )" + text.substr(1)) == "the key \"version\" appears twice");
  CHECK(with("schema", nlohmann::json::parse(std::string(20, '[') + std::string(20, ']'))) ==
        "nested deeper than 16");
  CHECK(with("weights_hash", std::vector<int>(100, 7)) ==
        "weights_hash: found [7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7,7..., "
        "expected a text");
  CHECK(refusal([] { StepCalibration::read("/nowhere/c.json"); }) == "/nowhere/c.json: is missing");
}

}  // namespace diptych

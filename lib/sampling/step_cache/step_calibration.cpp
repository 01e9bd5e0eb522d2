#include "lib/sampling/step_cache/step_calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/sha256.h"
#include "lib/base/text_file.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

constexpr const char* kSchema = "diptych.step_calibration";
constexpr std::int64_t kVersion = 1;
constexpr double kLeastExplained = 0.5;

// Why these samples calibrate nothing, or an empty text.
std::string samples_problem(const std::vector<StepChange>& samples) {
  if (samples.size() < StepCalibration::kLeastSamples) {
    return fmt::format("found {}, expected at least {} (more steps or prompts)", samples.size(),
                       StepCalibration::kLeastSamples);
  }
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto& [input, output] = samples[i];
    if (!(std::isfinite(input) && std::isfinite(output) && input >= 0 && output >= 0)) {
      return fmt::format("found [{}, {}] at {}, expected finite changes of at least 0", input,
                         output, i);
    }
  }
  return {};
}

std::string explained_problem(double explained) {
  if (explained >= kLeastExplained) return {};
  return fmt::format("explain {:.3g} of the variance, expected at least {}", explained,
                     kLeastExplained);
}

}  // namespace

std::int64_t StepRecording::steps() const {
  std::int64_t count = 0;
  for (const std::vector<Step>& picture : pictures) count += std::ssize(picture);
  return count;
}

std::int64_t StepRecording::computed_steps(double threshold,
                                           const StepCacheCoefficients& coefficients) const {
  std::int64_t count = 0;
  for (const std::vector<Step>& picture : pictures) {
    TeaCacheRule rule(threshold, coefficients, std::ssize(picture));
    for (std::size_t i = 0; i < picture.size(); ++i) {
      const bool computed = rule.begin_step(static_cast<std::int64_t>(i), picture[i].contexts,
                                            [&] { return picture[i].change; });
      count += computed ? 1 : 0;
    }
  }
  return count;
}

void StepChangeRecorder::begin_picture() {
  recording_.pictures.emplace_back();
  forget();
}

void StepChangeRecorder::forget() {
  input_ = {};
  outputs_.clear();
}

void StepChangeRecorder::record(std::int64_t step, std::int64_t context, const Tensor& input,
                                const Tensor& output) {
  TORCH_CHECK(!recording_.pictures.empty(), "[step recorder] begin_picture() comes first");
  auto& steps = recording_.pictures.back();
  if (input_.step != step) {  // its first context
    steps.emplace_back();
    const bool follows = input_.values.defined() && input_.step == step - 1;
    if (follows) steps.back().change = relative_change(input, input_.values).item<double>();
    input_ = {step, input};
  }
  ++steps.back().contexts;
  Rows& last = outputs_[context];
  if (last.values.defined() && last.step == step - 1) {
    recording_.changes.push_back(
        {steps.back().change, relative_change(output, last.values).item<double>()});
  }
  last = {step, output};
}

StepCalibration StepCalibration::fit(std::vector<StepChange> samples, std::string weights_hash) {
  if (const std::string problem = samples_problem(samples); !problem.empty()) {
    throw InputError("calibration: samples: {}", problem);
  }
  // Powers of inputs in 0..1 are of one size; the coefficients are scaled back afterwards.
  const double scale = std::ranges::max_element(samples, {}, &StepChange::input)->input;
  const auto rows = static_cast<std::int64_t>(samples.size());
  Tensor powers = at::empty({rows, 5}, at::kDouble), outputs = at::empty({rows, 1}, at::kDouble);
  auto power = powers.accessor<double, 2>();
  auto target = outputs.accessor<double, 2>();
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto& [input, output] = samples[static_cast<std::size_t>(i)];
    for (int column = 0; column < 5; ++column) {
      power[i][column] = std::pow(scale > 0 ? input / scale : 0, 4 - column);
    }
    target[i][0] = output;
  }
  const auto [solution, residuals, rank, singular] =
      at::linalg_lstsq(powers, outputs, std::nullopt, "gelsd");
  if (rank.item<std::int64_t>() < 5) {
    throw InputError(
        "calibration: the input changes by nearly the same from step to step: no polynomial of "
        "degree 4 can be fitted");
  }
  StepCalibration calibration;
  calibration.weights_hash = std::move(weights_hash);
  calibration.samples = std::move(samples);
  for (int column = 0; column < 5; ++column) {
    calibration.coefficients[static_cast<std::size_t>(column)] =
        solution[column][0].item<double>() / std::pow(scale, 4 - column);
  }
  if (const auto problem = explained_problem(calibration.explained_variance()); !problem.empty()) {
    throw InputError(
        "calibration: the input's changes {}: the output does not follow them; other prompts, more "
        "of them or more --steps may do",
        problem);
  }
  return calibration;
}

double StepCalibration::explained_variance() const {
  const auto count = static_cast<double>(samples.size());
  const double mean =
      std::accumulate(samples.begin(), samples.end(), 0.0,
                      [](double sum, const StepChange& s) { return sum + s.output; }) /
      count;
  double unexplained = 0, whole = 0;
  for (const auto& [input, output] : samples) {
    unexplained += std::pow(output - evaluate(coefficients, input), 2);
    whole += std::pow(output - mean, 2);
  }
  return whole > 0 ? 1 - unexplained / whole : 0;
}

void StepCalibration::require_weights(const std::filesystem::path& path,
                                      std::string_view loaded_hash) const {
  if (weights_hash == loaded_hash) return;
  throw InputError("{}: weights_hash: measured on {}, the loaded weights are {}", path.string(),
                   weights_hash, loaded_hash);
}

void StepCalibration::write(const std::filesystem::path& path) const {
  Json pairs = Json::array();
  for (const auto& [input, output] : samples) pairs.push_back({input, output});
  const nlohmann::ordered_json file = {{"schema", kSchema},
                                       {"version", kVersion},
                                       {"weights_hash", weights_hash},
                                       {"coefficients", coefficients},
                                       {"samples", pairs}};
  AtomicFile out(path);
  out.write(file.dump() + "\n");
  out.commit();
}

namespace {

Json read_object(const std::string& text, const std::filesystem::path& path) {
  Json json = parse_strict_json(text, path.string());
  if (!json.is_object()) throw InputError("{}: is not a JSON object", path.string());
  return json;
}

class CalibrationReader {
 public:
  CalibrationReader(const std::string& text, const std::filesystem::path& path)
      : path_(path.string()), json_(read_object(text, path)) {}

  StepCalibration read() const {
    constexpr std::array kKeys = {"schema", "version", "weights_hash", "coefficients", "samples"};
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(kKeys, key) == kKeys.end()) {
        throw InputError(
            "{}: {}: unknown key (known: schema, version, weights_hash, coefficients, "
            "samples)",
            path_, key);
      }
    }
    expect("schema", kSchema);
    expect("version", kVersion);
    StepCalibration calibration;
    const Json& hash = at("weights_hash");
    if (!hash.is_string() || hash.get<std::string>().empty())
      refuse("weights_hash", hash, "a text");
    calibration.weights_hash = hash;
    const std::vector<double> coefficients = numbers("coefficients", at("coefficients"), 5);
    std::ranges::copy(coefficients, calibration.coefficients.begin());
    const Json& samples = at("samples");
    if (!samples.is_array()) refuse("samples", samples, "a list of pairs");
    for (const Json& pair : samples) {
      const std::vector<double> change = numbers("samples", pair, 2);
      calibration.samples.push_back({change[0], change[1]});
    }
    check(samples_problem(calibration.samples), "samples");
    check(explained_problem(calibration.explained_variance()), "coefficients");
    return calibration;
  }

 private:
  void expect(const char* key, const Json& value) const {
    if (at(key) != value) refuse(key, at(key), value.dump());
  }

  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) throw InputError("{}: {}: missing", path_, key);
    return *found;
  }

  [[noreturn]] void refuse(const char* key, const Json& found, const std::string& expected) const {
    throw InputError("{}: {}: found {}, expected {}", path_, key, shown_json(found), expected);
  }

  void check(const std::string& problem, const char* key) const {
    if (!problem.empty()) throw InputError("{}: {}: {}", path_, key, problem);
  }

  std::vector<double> numbers(const char* key, const Json& list, std::size_t count) const {
    const auto is_number = [](const Json& value) { return value.is_number(); };
    if (!list.is_array() || list.size() != count || !std::ranges::all_of(list, is_number)) {
      refuse(key, list, fmt::format("{} numbers", count));
    }
    return list.get<std::vector<double>>();
  }

  std::string path_;
  Json json_;
};

}  // namespace

StepCalibration StepCalibration::read(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  StepCalibration calibration = CalibrationReader(text, path).read();
  calibration.file_hash = sha256_hex(std::as_bytes(std::span(text))).substr(0, 16);
  return calibration;
}

}  // namespace diptych

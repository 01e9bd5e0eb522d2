#include "lib/tuning/file.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/json_file.h"
#include "lib/base/messages.h"

namespace diptych {
namespace {

using Json = nlohmann::ordered_json;
using Parsed = nlohmann::json;

constexpr const char* kSchema = "diptych.tuning";
constexpr std::int64_t kVersion = 3;        // 2: before silu_mul_e4m3 and quantize_rows
constexpr const char* kDtype = "bfloat16";  // of all that is measured
constexpr std::int64_t kMostRows = 1 << 24, kMostWidth = 1 << 24;

std::string capability_text(const TunedDevice& device) {
  return fmt::format("{}.{}", device.major, device.minor);
}

// A value of the file with its place, for messages.
class Value {
 public:
  Value(const Parsed& json, std::string place) : json_(json), place_(std::move(place)) {}

  template <typename Expected>
  [[noreturn]] void refuse(const Expected& expected) const {
    throw InputError("{}: found {}, expected {}", place_, shown_json(json_), expected);
  }
  [[noreturn]] void refuse_reason(const std::string& reason) const {
    throw InputError("{}{}{}", place_, place_.ends_with(']') ? "." : ": ", reason);
  }

  // Of an object that has these keys and, some of them, `optional`; no others.
  void require_keys(std::span<const std::string_view> keys,
                    std::span<const std::string_view> optional = {}) const {
    if (!json_.is_object()) refuse("an object");
    for (const std::string_view key : keys) {
      if (!json_.contains(key)) throw InputError("{}: not there", path_of(key));
    }
    std::vector<std::string_view> known(keys.begin(), keys.end());
    known.insert(known.end(), optional.begin(), optional.end());
    for (const auto& [key, unused] : json_.items()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      throw InputError("{}: unknown key, expected {}", printable(path_of(shortened(key))),
                       fmt::join(known, ", "));
    }
  }
  bool contains(std::string_view key) const { return json_.contains(key); }
  Value operator[](std::string_view key) const {
    return {json_.at(std::string(key)), path_of(key)};
  }
  std::vector<std::string> keys() const {
    if (!json_.is_object()) refuse("an object");
    std::vector<std::string> keys;
    for (const auto& [key, unused] : json_.items()) keys.push_back(key);
    return keys;
  }
  std::vector<Value> list() const {
    if (!json_.is_array()) refuse("a list");
    std::vector<Value> values;
    for (std::size_t i = 0; i < json_.size(); ++i)
      values.emplace_back(json_[i], fmt::format("{}[{}]", place_, i));
    return values;
  }
  std::string text() const {
    if (!json_.is_string()) refuse("a text");
    return json_.get<std::string>();
  }
  std::int64_t whole(std::int64_t low, std::int64_t high) const {
    const bool fits = json_.is_number_integer() && json_ >= Parsed(low) && json_ <= Parsed(high);
    if (!fits) refuse(fmt::format("a whole number from {} to {}", low, high));
    return json_.get<std::int64_t>();
  }
  double positive() const {
    const double value = json_.is_number() ? json_.get<double>() : 0;
    if (!(value > 0) || !std::isfinite(value)) refuse("a number above 0");
    return value;
  }
  // The place of the text among the names.
  std::size_t one_of(std::span<const std::string_view> names) const {
    const auto found = std::ranges::find(names, text());
    if (found == names.end()) refuse(fmt::format("{}", fmt::join(names, ", ")));
    return static_cast<std::size_t>(found - names.begin());
  }

 private:
  std::string path_of(std::string_view key) const {
    return fmt::format("{}{}{}", place_, in_choices() ? "." : ": ", key);
  }
  bool in_choices() const { return place_.find(": choices") != std::string::npos; }

  const Parsed& json_;
  std::string place_;  // "FILE: choices[3].rows"
};

TunedShape read_shape(const Value& value, const TunedKernelInfo& info) {
  value.require_keys(info.widths);
  TunedShape shape{};
  for (std::size_t i = 0; i < info.widths.size(); ++i)
    shape[i] = value[info.widths[i]].whole(1, kMostWidth);
  return shape;
}

TunedTimes read_times(const Value& value, const TunedKernelInfo& info) {
  static constexpr std::string_view kKeys[] = {"rows", "milliseconds"};
  value.require_keys(kKeys);
  TunedTimes times;
  times.rows = value["rows"].whole(1, kMostRows);
  times.milliseconds.resize(info.choices.size());
  const Value milliseconds = value["milliseconds"];
  milliseconds.require_keys({}, info.choices);
  for (std::size_t i = 0; i < info.choices.size(); ++i) {
    if (milliseconds.contains(info.choices[i]))
      times.milliseconds[i] = milliseconds[info.choices[i]].positive();
  }
  return times;
}

TunedClass read_class(const Value& value) {
  static constexpr std::string_view kKeys[] = {"kernel", "shape", "rows", "choice"};
  static constexpr std::string_view kOptional[] = {"measured"};
  value.require_keys(kKeys, kOptional);
  std::vector<std::string_view> names;
  for (const TunedKernelInfo& info : tuned_kernels()) names.push_back(info.name);
  const TunedKernelInfo& info = tuned_kernels()[value["kernel"].one_of(names)];
  TunedClass tuned;
  tuned.kernel = info.kernel;
  tuned.shape = read_shape(value["shape"], info);
  const std::vector<Value> rows = value["rows"].list();
  if (rows.size() != 2) value["rows"].refuse("the first and the last");
  tuned.first_rows = rows[0].whole(1, kMostRows);
  tuned.last_rows = rows[1].whole(1, kMostRows);
  tuned.choice = static_cast<int>(value["choice"].one_of(info.choices));
  if (value.contains("measured")) {
    for (const Value& times : value["measured"].list())
      tuned.measured.push_back(read_times(times, info));
  }
  return tuned;
}

void require_device(const Value& root, const TunedDevice& device) {
  const std::string found = root["device"].text();
  if (found != device.name)
    root["device"].refuse(fmt::format("\"{}\", the device of this run", device.name));
  if (root["compute_capability"].text() != capability_text(device)) {
    root["compute_capability"].refuse(
        fmt::format("\"{}\", that of this run's device", capability_text(device)));
  }
}

TunedDevice read_device(const Value& root) {
  TunedDevice device{root["device"].text()};
  const std::string capability = root["compute_capability"].text();
  char rest = 0;
  if (std::sscanf(capability.c_str(), "%2d.%2d%c", &device.major, &device.minor, &rest) != 2)
    root["compute_capability"].refuse("MAJOR.MINOR, such as \"9.0\"");
  return device;
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// To a nanosecond.
double rounded(double milliseconds) {
  constexpr double kNanoseconds = 1e6;
  return std::round(milliseconds * kNanoseconds) / kNanoseconds;
}

// A line of JSON, and one of each number of rows that was measured.
std::string class_text(const TunedClass& tuned) {
  const TunedKernelInfo& info = info_of(tuned.kernel);
  Json shape;
  for (std::size_t i = 0; i < info.widths.size(); ++i)
    shape[std::string(info.widths[i])] = tuned.shape[i];
  std::vector<std::string> measured;
  for (const TunedTimes& times : tuned.measured) {
    Json milliseconds = Json::object();
    for (std::size_t i = 0; i < times.milliseconds.size(); ++i) {
      if (times.milliseconds[i])
        milliseconds[std::string(info.choices[i])] = rounded(*times.milliseconds[i]);
    }
    measured.push_back(line_of({{"rows", times.rows}, {"milliseconds", std::move(milliseconds)}}));
  }
  const Json head = {{"kernel", info.name},
                     {"shape", std::move(shape)},
                     {"rows", {tuned.first_rows, tuned.last_rows}},
                     {"choice", info.choices[static_cast<std::size_t>(tuned.choice)]}};
  const std::string text = line_of(head);
  return fmt::format("{},\"measured\":[\n{}]}}", text.substr(0, text.size() - 1),
                     fmt::join(measured, ",\n"));
}

}  // namespace

std::string tuning_file_name(const TunedDevice& device) {
  std::string name = device.name;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '-') letter = '_';
  }
  return name + ".json";
}

TuningFile parse_tuning(std::string_view text, std::string_view name,
                        const std::optional<TunedDevice>& device) {
  static constexpr std::string_view kKeys[] = {
      "schema", "schema_version", "device", "compute_capability", "dtype", "versions", "choices"};
  const Parsed json = parse_strict_json(text, name);
  const Value root(json, std::string(name));
  // Of a newer version first: it may have other keys.
  if (!json.is_object() || json.value("schema", Parsed()) != kSchema)
    throw InputError("{}: schema: not \"{}\"; expected a file of diptych tune", name, kSchema);
  const Parsed version = json.value("schema_version", Parsed());
  if (version != kVersion) {
    throw InputError(
        "{}: schema_version: found {}, this version reads {}; diptych tune measures again", name,
        shown_json(version), kVersion);
  }
  root.require_keys(kKeys);
  if (device) require_device(root, *device);
  if (root["dtype"].text() != kDtype) root["dtype"].refuse(fmt::format("\"{}\"", kDtype));
  TuningFile file;
  file.device = read_device(root);
  for (const std::string& key : root["versions"].keys())
    file.versions[key] = root["versions"][key].text();
  for (const Value& value : root["choices"].list()) {
    TunedClass tuned = read_class(value);
    try {
      file.table.add(std::move(tuned));
    } catch (const InputError& error) {  // it names the key
      value.refuse_reason(error.what());
    }
  }
  return file;
}

std::string tuning_text(const TuningFile& file) {
  Json json = {{"schema", kSchema},
               {"schema_version", kVersion},
               {"device", file.device.name},
               {"compute_capability", capability_text(file.device)},
               {"dtype", kDtype},
               {"versions", Json::object()}};
  for (const auto& [key, version] : file.versions) json["versions"][key] = version;
  std::vector<std::string> classes;
  for (const TunedClass& tuned : file.table.classes()) classes.push_back(class_text(tuned));
  const std::string text = line_of(json);
  return fmt::format("{},\"choices\":[\n{}]}}", text.substr(0, text.size() - 1),
                     fmt::join(classes, ",\n"));
}

}  // namespace diptych

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/tensor/trace.h"
#include "lib/verify/trace_compare.h"
#include "lib/verify/trace_names.h"

namespace diptych {
namespace {

constexpr double kAnyLevel = 255;
constexpr double kLevelsPerUnit = 127.5;  // a decoded picture's -1 to 1 becomes 0 to 255

double checked(const nlohmann::json& value, std::string_view key) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
    throw InputError("case.json: tolerance.{}: found {}, expected a number of at least 0", key,
                     value.dump());
  }
  return value.get<double>();
}

std::optional<double> optional_number(const nlohmann::json& block, const char* key) {
  const auto found = block.find(key);
  return found == block.end() ? std::nullopt : std::optional(checked(*found, key));
}

}  // namespace

Tolerances Tolerances::uniform(double value) {
  Tolerances result;
  result.fallback_ = value;
  result.image_max_abs_ = value > 0 ? std::max(1.0, value) : 0;
  return result;
}

Tolerances Tolerances::from_case(const nlohmann::json& case_json) {
  Tolerances result;
  if (!case_json.is_object()) throw InputError("case.json: expected an object");
  const auto block = case_json.find("tolerance");
  if (block == case_json.end()) return result;
  if (!block->is_object()) throw InputError("case.json: tolerance: expected an object");

  if (const auto suggested = block->find("suggested"); suggested != block->end()) {
    if (!suggested->is_object())
      throw InputError("case.json: tolerance.suggested: expected an object");
    for (const auto& [group, value] : suggested->items()) {
      result.groups_[group] = checked(value, "suggested." + group);
      result.fallback_ = std::max(result.fallback_, result.groups_[group]);
    }
  }
  if (const auto value = optional_number(*block, "float_max_abs")) result.fallback_ = *value;
  if (const auto value = optional_number(*block, "suggested_overall")) result.fallback_ = *value;

  result.image_mean_abs_ = optional_number(*block, "image_uint8_mean_abs");
  if (result.image_mean_abs_) {
    // Levels are truncated: values within d of each other give levels within ceil(d).
    const auto decoded = result.groups_.find("vae.decoded");
    result.image_max_abs_ =
        decoded == result.groups_.end() ? kAnyLevel : std::ceil(kLevelsPerUnit * decoded->second);
  }
  for (const char* key : {"uint8_max_abs", "image_uint8_max_abs"}) {
    if (const auto value = optional_number(*block, key)) result.image_max_abs_ = *value;
  }
  return result;
}

void Tolerances::set(std::string glob, double value) {
  globs_.emplace_back(std::move(glob), value);
}

void Tolerances::set_relative_norm(std::string glob, double value) {
  norm_globs_.emplace_back(std::move(glob), value);
}

std::optional<double> Tolerances::relative_norm_for(std::string_view name) const {
  if (is_integer_name(name)) return std::nullopt;
  for (auto entry = norm_globs_.rbegin(); entry != norm_globs_.rend(); ++entry) {
    if (glob_matches(entry->first, name)) return entry->second;
  }
  return std::nullopt;
}

double Tolerances::for_name(std::string_view name) const {
  for (auto entry = globs_.rbegin(); entry != globs_.rend(); ++entry) {
    if (glob_matches(entry->first, name)) return entry->second;
  }
  if (is_image_name(name)) return image_max_abs_;
  if (is_integer_name(name)) return 0;
  for (const std::string& group : tolerance_groups(name)) {
    if (const auto found = groups_.find(group); found != groups_.end()) return found->second;
  }
  return fallback_;
}

}  // namespace diptych

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/tensor/trace.h"
#include "lib/verify/trace_compare.h"

namespace diptych {
namespace {

using Json = nlohmann::json;

constexpr double kAnyLevel = 255;
constexpr double kLevelsPerUnit = 127.5;  // a decoded picture's -1 to 1 becomes 0 to 255

constexpr const char* kOverall[] = {"float_max_abs", "suggested_overall"};     // the last counts
constexpr const char* kPictures[] = {"uint8_max_abs", "image_uint8_max_abs"};  // likewise
constexpr std::string_view kLevels = "u8:";
constexpr const char* kPictureMean = "image_uint8_mean_abs";

double checked(const Json& value, std::string_view key) {
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0) {
    throw InputError("case.json: tolerance.{}: found {}, expected a number of at least 0", key,
                     value.dump());
  }
  return value.get<double>();
}

std::optional<double> optional_number(const Json& block, const char* key) {
  const auto found = block.find(key);
  return found == block.end() ? std::nullopt : std::optional(checked(*found, key));
}

const Json& checked_object(const Json& block, const char* key) {
  if (!block.at(key).is_object())
    throw InputError("case.json: tolerance.{}: expected an object", key);
  return block.at(key);
}

using Groups = std::map<std::string, double, std::less<>>;

// {"suggested": {GROUP: NUMBER}}
void read_suggested(const Json& block, Groups& groups) {
  for (const auto& [group, value] : checked_object(block, "suggested").items())
    groups[group] = checked(value, "suggested." + group);
}

// {"groups": {GROUP: {"allowed": NUMBER}}}; "u8:" before the name says that its tensors hold
// levels.
void read_allowed(const Json& block, Groups& groups) {
  for (const auto& [group, entry] : checked_object(block, "groups").items()) {
    const bool there = entry.is_object() && entry.contains("allowed");
    const std::size_t begin = group.starts_with(kLevels) ? kLevels.size() : 0;
    groups[group.substr(begin)] =
        checked(there ? entry.at("allowed") : Json(), "groups." + group + ".allowed");
  }
}

// "2 ulp of F32" -> 2 units in the last place, relative to the number.
std::optional<double> ulps_of(const Json& value) {
  constexpr std::string_view kUlps = " ulp of F32";
  if (!value.is_string()) return std::nullopt;
  const auto text = value.get<std::string>();
  if (!text.ends_with(kUlps)) return std::nullopt;
  unsigned count = 0;
  const char* const end = text.data() + text.size() - kUlps.size();
  const auto [next, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || next != end) return std::nullopt;
  return static_cast<double>(std::numeric_limits<float>::epsilon()) * count;
}

// {GROUP: "2 ulp of F32"}, beside the groups of read_flat().
Groups read_norms(const Json& block) {
  Groups groups;
  for (const auto& [group, value] : block.items()) {
    if (const auto limit = ulps_of(value)) groups[group] = *limit;
  }
  return groups;
}

// {GROUP: NUMBER, "exact" or "bit-exact"}; other texts and objects are remarks.
void read_flat(const Json& block, Groups& groups) {
  const auto is_own = [](std::string_view key) {
    return key == kPictureMean || std::ranges::count(kOverall, key) > 0 ||
           std::ranges::count(kPictures, key) > 0;
  };
  for (const auto& [group, value] : block.items()) {
    if (value == "exact" || value == "bit-exact") groups[group] = 0;
    if (value.is_string() || value.is_object() || is_own(group)) continue;
    groups[group] = checked(value, group);
  }
}

Groups read_groups(const Json& block) {
  Groups groups;
  if (block.contains("suggested")) read_suggested(block, groups);
  if (block.contains("groups")) read_allowed(block, groups);
  if (!block.contains("suggested") && !block.contains("groups")) read_flat(block, groups);
  return groups;
}

}  // namespace

Tolerances Tolerances::uniform(double value) {
  Tolerances result;
  result.fallback_ = value;
  result.image_max_abs_ = value > 0 ? std::max(1.0, value) : 0;
  return result;
}

Tolerances Tolerances::from_case(const Json& case_json, const TraceNames& names) {
  Tolerances result;
  result.names_ = names;
  if (!case_json.is_object()) throw InputError("case.json: expected an object");
  const auto block = case_json.find("tolerance");
  if (block == case_json.end() || *block == "exact") return result;
  if (!block->is_object())
    throw InputError("case.json: tolerance: expected an object or \"exact\"");

  result.groups_ = read_groups(*block);
  result.norm_groups_ = read_norms(*block);
  for (const auto& [group, value] : result.groups_)
    result.fallback_ = std::max(result.fallback_, value);
  for (const char* key : kOverall)
    result.fallback_ = optional_number(*block, key).value_or(result.fallback_);

  result.image_mean_abs_ = optional_number(*block, kPictureMean);
  if (result.image_mean_abs_) {
    // Levels are truncated: values within d of each other give levels within ceil(d).
    const auto decoded = result.groups_.find("vae.decoded");
    result.image_max_abs_ =
        decoded == result.groups_.end() ? kAnyLevel : std::ceil(kLevelsPerUnit * decoded->second);
  }
  for (const char* key : kPictures)
    result.image_max_abs_ = optional_number(*block, key).value_or(result.image_max_abs_);
  return result;
}

void Tolerances::set(std::string glob, double value) {
  globs_.emplace_back(std::move(glob), value);
}

void Tolerances::set_relative_norm(NormTolerance tolerance) {
  norms_.push_back(std::move(tolerance));
}

std::optional<double> Tolerances::relative_norm_for(std::string_view name) const {
  for (auto entry = norms_.rbegin(); entry != norms_.rend(); ++entry) {
    if (glob_matches(entry->glob, name)) return entry->limit;
  }
  const bool is_set = std::ranges::any_of(
      globs_, [&](const auto& entry) { return glob_matches(entry.first, name); });
  if (is_set || matching_group(name) || listed_group(name, groups_)) return std::nullopt;
  return listed_group(name, norm_groups_);
}

// The group of the case that matches the name as a glob; of several the longest.
std::optional<double> Tolerances::matching_group(std::string_view name) const {
  const std::pair<const std::string, double>* longest = nullptr;
  for (const auto& entry : groups_) {
    const bool longer = longest == nullptr || entry.first.size() > longest->first.size();
    if (longer && glob_matches(entry.first, name)) longest = &entry;
  }
  return longest == nullptr ? std::nullopt : std::optional(longest->second);
}

std::optional<double> Tolerances::listed_group(std::string_view name, const Groups& groups) const {
  const auto listed = std::ranges::find_if(
      names_.groups, [&](const TraceGroups& entry) { return glob_matches(entry.glob, name); });
  if (listed == names_.groups.end()) return std::nullopt;
  for (const std::string_view group : listed->groups) {
    if (const auto found = groups.find(group); found != groups.end()) return found->second;
  }
  return std::nullopt;
}

double Tolerances::for_tensor(std::string_view name, TensorKind kind) const {
  if (kind == TensorKind::whole) return 0;
  for (auto entry = globs_.rbegin(); entry != globs_.rend(); ++entry) {
    if (glob_matches(entry->first, name)) return entry->second;
  }
  if (const auto value = matching_group(name)) return *value;
  return kind == TensorKind::bytes ? image_max_abs_
                                   : listed_group(name, groups_).value_or(fallback_);
}

}  // namespace diptych

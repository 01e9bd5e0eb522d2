#include "lib/base/setting.h"

#include <algorithm>

#include <fmt/format.h>

namespace diptych {
namespace {

std::string with_value(const std::string& name, const Setting& setting) {
  return setting.value.empty() ? name : fmt::format("{} {}", name, setting.value);
}

}  // namespace

Setting Setting::of(std::string_view name, std::string_view value) {
  std::string label = fmt::format("--{}", name);
  std::ranges::replace(label, '_', '-');
  return {std::string(name), std::move(label), std::string(value)};
}

Setting Setting::absent(std::string_view name) {
  Setting setting = of(name);
  setting.given = false;
  return setting;
}

Setting Setting::called(std::string_view other_label) const {
  Setting setting = *this;
  setting.label = other_label;
  return setting;
}

std::string problem_text(const SettingProblem& problem, const SettingView& view) {
  std::string text = with_value(view.place, problem.setting) + ": ";
  if (!problem.found.empty())
    text += fmt::format("found {}{}", problem.found, view.is_default ? " (the default)" : "");
  for (const auto& part : problem.text) {
    if (const auto* words = std::get_if<std::string>(&part)) {
      text += *words;
      continue;
    }
    const Setting& other = std::get<Setting>(part);
    text += with_value(other.label, other);
  }
  return text;
}

}  // namespace diptych

#include "apps/diptych/flag_help.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "lib/config/family_fields.h"

namespace diptych {
namespace {

// "auto|t2i|edit": every task that a family has.
std::vector<std::string_view> task_names(Families families) {
  std::vector<std::string_view> names = {kAnyTask};
  for (const FamilyConfig* family : families) {
    for (const Task& task : family->tasks) {
      if (std::ranges::find(names, task.name) == names.end()) names.push_back(task.name);
    }
  }
  return names;
}

// What each task does, and which task `auto` is in the first family.
std::string task_help(Families families) {
  std::vector<std::string_view> names, texts;
  for (const FamilyConfig* family : families) {
    for (const Task& task : family->tasks) {
      if (std::ranges::find(names, task.name) != names.end()) continue;
      names.push_back(task.name);
      texts.push_back(task.help);
    }
  }
  std::string help = fmt::format("{}", fmt::join(texts, ", "));
  const Task* reads = families.front()->task_for({.pictures = 1});
  const Task* other = families.front()->task_for({});
  if (reads != nullptr && other != nullptr)
    help += fmt::format(
        "; auto: {} where there is a picture, else {}, or what the name of "
        "--output says (.txt, .mp4)",
        reads->name, other->name);
  return help;
}

bool has_field(const FamilyConfig& family, const Field& field) {
  return family.uses(field.name) &&
         std::ranges::find(family.fields, field.name, &Field::name) != family.fields.end();
}

// What each family says of a field, "" = nothing.
using FamilyTexts = std::vector<std::pair<std::string_view, std::string>>;

bool all_agree(const FamilyTexts& texts) {
  return std::ranges::all_of(texts,
                             [&](const auto& each) { return each.second == texts.front().second; });
}

// "bagel: 50; lance, wan: 30"
std::string by_family(const FamilyTexts& texts) {
  FamilyTexts names;  // text -> the families that say it
  for (const auto& [family, text] : texts) {
    if (text.empty()) continue;
    const auto known = std::ranges::find(names, text, &FamilyTexts::value_type::first);
    if (known == names.end()) {
      names.emplace_back(text, family);
    } else {
      known->second += fmt::format(", {}", family);
    }
  }
  std::string all;
  for (const auto& [text, families] : names)
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", families, text);
  return all;
}

// Behind the help of the field: limits of its families.
std::string limits_help(const Field& field, Families families) {
  FamilyTexts texts;
  for (const FamilyConfig* family : families) {
    if (has_field(*family, field))
      texts.emplace_back(family->name, family->limit_of(field.name).help);
  }
  if (all_agree(texts)) return texts.front().second;
  for (auto& [family, text] : texts) text.erase(0, text.find(' ') + 1);  // ", " or "; "
  return fmt::format("; {}", by_family(texts));
}

// "50", "1360; of videos from a picture 1280"; what a checkpoint sets is said so. "" = no default.
std::string default_of(const Field& field, const FamilyConfig& family) {
  Options defaults = default_options(family);
  if (family.of_checkpoint != nullptr && field.scope != Scope::session) {
    if (family.makes(MediaKind::clip)) defaults.run.makes = MediaKind::clip;
    const std::vector<OwnDefault> own = family.of_checkpoint(defaults.run);
    if (std::ranges::find(own, field.name, &OwnDefault::field) != own.end())
      return "depends on the model";
  }
  std::string text = value_text(field, defaults);
  for (const Task& task : family.tasks) {
    if (const std::string_view own = task_default(task, field.name); !own.empty())
      text += fmt::format("; of {} {}", task.results, own);
  }
  return text;
}

std::string defaults_help(const Field& field, Families families) {
  FamilyTexts texts;
  for (const FamilyConfig* family : families) {
    if (has_field(*family, field)) texts.emplace_back(family->name, default_of(field, *family));
  }
  return all_agree(texts) ? texts.front().second : by_family(texts);
}

}  // namespace

std::string flag_value(const Field& field, Families families) {
  if (!std::holds_alternative<TaskSlot>(field.slot)) return std::string(field.value);
  return fmt::format("{}", fmt::join(task_names(families), "|"));
}

std::string flag_help(const Field& field, Families families) {
  const bool is_task = std::holds_alternative<TaskSlot>(field.slot);
  std::string help = is_task ? task_help(families) : std::string(field.help);
  help += limits_help(field, families);
  const std::string defaults = defaults_help(field, families);
  return defaults.empty() ? help : fmt::format("{} [{}]", help, defaults);
}

}  // namespace diptych

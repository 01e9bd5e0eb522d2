#include "lib/config/demo_choice.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "lib/base/error.h"
#include "lib/config/flag_hints.h"
#include "lib/config/result_formats.h"
#include "lib/config/stage_config.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// Null where the stage config names no family that is known.
const FamilyConfig* family_of_demo(const Sources& sources, const fs::path& demo) {
  const YamlNode tree = load_stage_config(demo, {});
  const YamlEntry* name = tree.find("pipeline");
  const auto named = std::ranges::find_if(sources.families, [&](const FamilyConfig* each) {
    return name != nullptr && each->name == name->value.text;
  });
  return named == sources.families.end() ? nullptr : *named;
}

// Empty where no output is named, or its name says nothing.
std::vector<MediaKind> wished_kinds(const GivenTexts& given) {
  const auto output = given.of("output");
  return output ? kinds_of_name(output->text) : std::vector<MediaKind>{};
}

// For the task that is named, else for the inputs and the name of the output.
bool has_task(const FamilyConfig& family, const Sources& sources, const GivenTexts& given) {
  if (const auto task = given.of("task"); task && task->text != kAnyTask)
    return family.find_task(task->text) != nullptr;
  InputCounts inputs;
  for (const FlagInput& input : sources.inputs) {
    inputs.pictures += input.kind == MediaKind::picture ? 1 : 0;
    inputs.clips += input.kind == MediaKind::clip ? 1 : 0;
  }
  const std::vector<MediaKind> kinds = wished_kinds(given);
  return (kinds.empty() ? family.task_for(inputs) : family.task_for(inputs, kinds)) != nullptr;
}

}  // namespace

const fs::path* find_demo(const Sources& sources, const GivenTexts& given,
                          const FamilyConfig* only) {
  const std::vector<MediaKind> wished = wished_kinds(given);
  const fs::path* first = nullptr;
  const fs::path* makes = nullptr;
  const fs::path* reads = nullptr;
  for (const fs::path& demo : sources.demos) {
    const FamilyConfig* family = family_of_demo(sources, demo);
    if (only != nullptr && family != only) continue;
    if (first == nullptr) first = &demo;
    if (family == nullptr) continue;
    if (has_task(*family, sources, given)) return &demo;
    const auto is_made = [&](MediaKind kind) { return family->makes(kind); };
    if (makes == nullptr && std::ranges::any_of(wished, is_made)) makes = &demo;
    const auto is_read = [&](const FlagInput& input) { return family->reads(input.kind); };
    if (reads == nullptr && std::ranges::all_of(sources.inputs, is_read)) reads = &demo;
  }
  if (makes != nullptr) return makes;
  return reads == nullptr ? first : reads;
}

void refuse_task_of_no_demo(const Sources& sources, const GivenTexts& given) {
  const auto task = given.of("task");
  if (!task || task->text == kAnyTask || is_video_task(task->text) || sources.demos.empty()) return;
  std::vector<std::string_view> known = {kAnyTask};
  for (const fs::path& demo : sources.demos) {
    const FamilyConfig* family = family_of_demo(sources, demo);
    if (family == nullptr) continue;
    if (family->find_task(task->text) != nullptr) return;
    for (const Task& each : family->tasks) {
      if (std::ranges::find(known, each.name) == known.end()) known.push_back(each.name);
    }
  }
  throw InputError("{}: unknown value {}{}", task->origin, in_quotes(task->text),
                   suggestion(task->text, known));
}

void require_dummy_weights(const Sources& sources, const GivenTexts& given,
                           const FamilyConfig& family, const std::string& flag) {
  if (sources.demos.empty()) return;  // nor has any other family one
  const auto format = given.of("load_format");
  if (format && format->text == name_of(LoadFormat::dummy)) return;
  throw InputError("{}: is of {}, which has no demo; expected -c or -m, too, or --load-format {}",
                   flag, family.name, name_of(LoadFormat::dummy));
}

}  // namespace diptych

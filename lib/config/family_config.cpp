#include "lib/config/family_config.h"

#include <algorithm>
#include <unordered_set>

namespace diptych {

const Task* FamilyConfig::find_task(std::string_view task) const {
  const auto found = std::ranges::find(tasks, task, &Task::name);
  return found == tasks.end() ? nullptr : &*found;
}

const Task* FamilyConfig::task_for(const InputCounts& inputs) const {
  const auto found =
      std::ranges::find_if(tasks, [&](const Task& task) { return task.reads.fits(inputs); });
  return found == tasks.end() ? nullptr : &*found;
}

const Task* FamilyConfig::task_for(const InputCounts& inputs,
                                   std::span<const MediaKind> makes) const {
  const auto found = std::ranges::find_if(tasks, [&](const Task& task) {
    return task.reads.fits(inputs) && std::ranges::find(makes, task.makes) != makes.end();
  });
  return found == tasks.end() ? nullptr : &*found;
}

const Task* FamilyConfig::task_for(const InputCounts& inputs, MediaKind makes) const {
  return task_for(inputs, std::span(&makes, 1));
}

bool FamilyConfig::reads(MediaKind kind) const {
  return std::ranges::any_of(tasks, [&](const Task& task) {
    switch (kind) {
      case MediaKind::picture:
        return task.reads.pictures.most > 0;
      case MediaKind::clip:
        return task.reads.clips.most > 0;
      case MediaKind::text:
        return true;
    }
    return false;
  });
}

bool FamilyConfig::makes(MediaKind kind) const {
  return std::ranges::find(tasks, kind, &Task::makes) != tasks.end();
}

FieldLimit FamilyConfig::limit_of(std::string_view field) const {
  const auto found = std::ranges::find(limits, field, &FieldLimit::field);
  return found == limits.end() ? FieldLimit{field} : *found;
}

bool FamilyConfig::uses(std::string_view field) const {
  return std::ranges::find(unused, field) == unused.end();
}

std::string_view task_default(const Task& task, std::string_view field) {
  const auto found = std::ranges::find(task.defaults, field, &FieldDefault::field);
  return found == task.defaults.end() ? "" : found->text;
}

std::vector<Field> flag_fields(std::span<const FamilyConfig* const> families) {
  std::vector<Field> flags;
  std::unordered_set<std::string_view> known;
  const auto add = [&](std::span<const Field> fields) {
    for (const Field& field : fields) {
      const auto uses = [&](const FamilyConfig* family) { return family->uses(field.name); };
      if (!field.flags.empty() && std::ranges::any_of(families, uses) &&
          known.insert(field.flags).second) {
        flags.push_back(field);
      }
    }
  };
  add(all_fields());
  for (const FamilyConfig* family : families) add(family->fields);
  return flags;
}

}  // namespace diptych

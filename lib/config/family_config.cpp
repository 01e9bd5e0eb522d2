#include "lib/config/family_config.h"

#include <algorithm>
#include <stdexcept>

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

std::string_view kind_name(MediaKind kind) {
  switch (kind) {
    case MediaKind::picture:
      return "pictures";
    case MediaKind::clip:
      return "videos";
    case MediaKind::text:
      return "texts";
  }
  throw std::logic_error("a kind of media without a name");
}

std::string_view input_name(MediaKind kind) {
  switch (kind) {
    case MediaKind::picture:
      return "image";
    case MediaKind::clip:
      return "video";
    case MediaKind::text:
      return "prompt";
  }
  throw std::logic_error("a kind of media without a flag");
}

std::optional<MediaKind> kind_of_input(std::string_view name) {
  for (const MediaKind kind : {MediaKind::picture, MediaKind::clip, MediaKind::text}) {
    if (input_name(kind) == name) return kind;
  }
  return std::nullopt;
}

std::vector<Field> with_common_fields(std::span<const Field> own) {
  std::vector<Field> fields(all_fields().begin(), all_fields().end());
  fields.insert(fields.end(), own.begin(), own.end());
  return fields;
}

std::span<const Field> fields_of(const Options& options) {
  return options.run.family == nullptr ? all_fields() : std::span(options.run.family->fields);
}

std::vector<Field> flag_fields(std::span<const FamilyConfig* const> families) {
  std::vector<Field> flags;
  const auto add = [&](std::span<const Field> fields) {
    for (const Field& field : fields) {
      const bool is_new = std::ranges::find(flags, field.flags, &Field::flags) == flags.end();
      const auto uses = [&](const FamilyConfig* family) { return family->uses(field.name); };
      if (!field.flags.empty() && is_new && std::ranges::any_of(families, uses))
        flags.push_back(field);
    }
  };
  add(all_fields());
  for (const FamilyConfig* family : families) add(family->fields);
  return flags;
}

Options default_options(const FamilyConfig& family) {
  Options options;
  options.run.family = &family;
  options.run.pipeline = family.name;
  for (const auto& [name, text] : family.defaults) {
    const Field& field = family.fields[field_index(name, family.fields)];
    assign(field, options, std::string(text), name);
  }
  return options;
}

std::string_view task_default(const Task& task, std::string_view field) {
  const auto found = std::ranges::find(task.defaults, field, &FieldDefault::field);
  return found == task.defaults.end() ? "" : found->text;
}

}  // namespace diptych

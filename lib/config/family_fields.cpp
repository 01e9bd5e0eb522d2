#include "lib/config/family_fields.h"

#include <algorithm>

namespace diptych {

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

}  // namespace diptych

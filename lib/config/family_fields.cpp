#include "lib/config/family_fields.h"

namespace diptych {

std::vector<Field> with_common_fields(std::span<const Field> own) {
  std::vector<Field> fields(all_fields().begin(), all_fields().end());
  fields.insert(fields.end(), own.begin(), own.end());
  return fields;
}

std::span<const Field> fields_of(const Options& options) {
  return options.run.family == nullptr ? all_fields() : std::span(options.run.family->fields);
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

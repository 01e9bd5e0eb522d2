// Values of a parsed file as the texts that assign() takes; their types are checked, their ranges
// are not.
#pragma once

#include <string>
#include <string_view>

#include "lib/config/fields.h"
#include "lib/config/yaml_reader.h"

namespace diptych {

// Throw InputError "<place>: <path>: expected a number, found ..."; a truth value is one without
// quotes. Paths come out relative to the
// file that holds them.
std::string field_text(const Field& field, const YamlNode& node, std::string_view path);
std::string scalar_text(const YamlNode& node, std::string_view path);
// As scalar_text(), of what somebody wrote to be read: a number, true or false without quotes is no
// such text.
std::string written_text(const YamlNode& node, std::string_view path);
std::string path_text(const YamlNode& node, std::string_view path);

}  // namespace diptych

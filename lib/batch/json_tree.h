// One JSON text as the tree that lib/config reads, so that JSON and YAML lists share their checks.
#pragma once

#include <string_view>

#include "lib/config/yaml_reader.h"

namespace diptych {

// Strings become scalars in quotes, all other values plain ones; every node stands at `where`.
// Throws InputError "<where>: ..." for a text that is no JSON, has a key twice in one object, or is
// nested deeper than kMaxYamlDepth.
YamlNode parse_json_tree(std::string_view text, const YamlWhere& where);

}  // namespace diptych

// What the help says of a field: its values, limits and defaults, which differ by family and task.
#pragma once

#include <span>
#include <string>

#include "lib/config/family_config.h"
#include "lib/config/fields.h"

namespace diptych {

using Families = std::span<const FamilyConfig* const>;

// "INT", or of the task every one that a family has: "auto|t2i|edit".
std::string flag_value(const Field& field, Families families);
std::string flag_help(const Field& field, Families families);

}  // namespace diptych

// The fields of a family, and what they hold where nothing is said.
#pragma once

#include <span>
#include <vector>

#include "lib/config/family_config.h"
#include "lib/config/fields.h"

namespace diptych {

// The common fields, which keep their places in the list, and then a family's own.
std::vector<Field> with_common_fields(std::span<const Field> own = {});
// The fields of the options' family; the common ones where they have none.
std::span<const Field> fields_of(const Options& options);

// What holds where nothing else is said: the common defaults, and the family's over them.
Options default_options(const FamilyConfig& family);

}  // namespace diptych

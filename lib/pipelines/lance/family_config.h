// What Lance declares to the configuration.
#pragma once

#include "lib/config/family_config.h"

namespace diptych {

const FamilyConfig& lance_config();

}  // namespace diptych

// What Wan declares to the configuration.
#pragma once

#include "lib/config/family_config.h"

namespace diptych {

const FamilyConfig& wan_config();

}  // namespace diptych

// What BAGEL declares to the configuration.
#pragma once

#include "lib/config/family_config.h"

namespace diptych {

const FamilyConfig& bagel_config();

}  // namespace diptych

// What Cosmos-Predict2 declares to the configuration.
#pragma once

#include "lib/config/family_config.h"

namespace diptych {

const FamilyConfig& cosmos_config();

}  // namespace diptych

// What Qwen3 declares to the configuration.
#pragma once

#include "lib/config/family_config.h"

namespace diptych {

const FamilyConfig& qwen3_config();

}  // namespace diptych

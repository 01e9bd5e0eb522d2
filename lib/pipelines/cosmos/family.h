// Cosmos-Predict2's record.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

const Family& cosmos_family();

}  // namespace diptych

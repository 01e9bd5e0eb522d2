// Wan's record.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

const Family& wan_family();

}  // namespace diptych

// BAGEL's record.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

const Family& bagel_family();

}  // namespace diptych

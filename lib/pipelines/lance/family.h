// Lance's record.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

const Family& lance_family();

}  // namespace diptych

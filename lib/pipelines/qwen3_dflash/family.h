// Qwen3 language models, with a DFlash drafter where one is named.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

const Family& qwen3_family();

}  // namespace diptych

// The names of Wan's recorded tensors (goldens/wan).
#pragma once

#include <vector>

#include "lib/pipelines/family.h"

namespace diptych {

const TraceNames& wan_trace_names();

}  // namespace diptych

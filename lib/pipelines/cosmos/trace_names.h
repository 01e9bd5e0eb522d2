// The names of Cosmos' recorded tensors (goldens/cosmos).
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

const TraceNames& cosmos_trace_names();

}  // namespace diptych

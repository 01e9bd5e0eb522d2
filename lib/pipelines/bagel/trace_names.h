// What the names of BAGEL's recorded tensors say, and how far a bfloat16 run may be from them.
#pragma once

#include <vector>

#include "lib/pipelines/family.h"

namespace diptych {

const TraceNames& bagel_trace_names();
std::vector<NormTolerance> bagel_bf16_tolerances(const RecordedCase& recorded);

}  // namespace diptych

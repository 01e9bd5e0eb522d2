// What the names of Lance's recorded tensors say.
#pragma once

#include <vector>

#include "lib/pipelines/family.h"

namespace diptych {

const TraceNames& lance_trace_names();
// As Family::bf16_tolerances.
std::vector<NormTolerance> lance_bf16_tolerances(const RecordedCase& recorded);

}  // namespace diptych

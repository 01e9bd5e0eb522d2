// The names of the recorded tensors of Qwen3 with DFlash (goldens/dflash).
#pragma once

#include "lib/verify/trace_names.h"

namespace diptych {

// What the names of a whole drafted text begin with.
inline constexpr const char* kDraftedText = "dflash";

const TraceNames& qwen3_dflash_trace_names();

}  // namespace diptych

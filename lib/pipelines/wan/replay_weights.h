// Recorded cases of LoRA files and of single files: runs with them, and the weights they give.
#pragma once

#include <functional>

#include "lib/pipelines/dit/session.h"
#include "lib/pipelines/family.h"

namespace diptych {

bool has_own_weights(const RecordedCase& recorded);

// Runs a case in a session that was opened as `config` says, recording in `trace`.
using WanCaseRun =
    std::function<void(DitSession& session, const RunConfig& config, TraceSink& trace)>;

// All runs of the case: the first under its own names, others as "plain." and "lora."; and the
// weights as they are loaded, merged ("fused.") or from fp8 codes ("dequant."). Throws CheckFailed
// where two files that hold the same weights do not give the same.
void replay_wan_weights(const RunConfig& config, const RecordedCase& recorded, Log& log,
                        TraceSink& trace, const WanCaseRun& run);

}  // namespace diptych

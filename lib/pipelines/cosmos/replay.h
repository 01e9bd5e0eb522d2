// Recorded cases of Cosmos-Predict2 (goldens/cosmos) run again.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

// As Family::replay.
CaseReplay replay_cosmos(const std::filesystem::path& checkpoint, const RunConfig& config,
                         Log& log);

}  // namespace diptych

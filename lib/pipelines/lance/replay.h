// Recorded cases of Lance (goldens/lance) run again.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

// As Family::replay. `checkpoint`: the folder that holds all parts.
CaseReplay replay_lance(const std::filesystem::path& checkpoint, const RunConfig& config, Log& log);

}  // namespace diptych

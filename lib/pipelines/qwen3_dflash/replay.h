// Recorded cases of Qwen3 with DFlash (goldens/dflash) run again.
#pragma once

#include <filesystem>

#include "lib/pipelines/family.h"

namespace diptych {

// As Family::replay. `checkpoint`: a folder with the target and the drafters that the cases name.
CaseReplay replay_qwen3_dflash(const std::filesystem::path& checkpoint, const RunConfig& config,
                               Log& log);

}  // namespace diptych

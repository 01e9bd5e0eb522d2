// Recorded cases of Wan (goldens/wan) run again.
#pragma once

#include <filesystem>

#include "lib/pipelines/family.h"

namespace diptych {

// As Family::replay.
CaseReplay replay_wan(const std::filesystem::path& checkpoint, const RunConfig& config, Log& log);

}  // namespace diptych

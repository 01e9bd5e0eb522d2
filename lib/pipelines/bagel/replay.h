// Recorded cases of BAGEL (the golden layout) run again, for `diptych verify`.
#pragma once

#include "lib/pipelines/family.h"

namespace diptych {

CaseReplay replay_bagel(const std::filesystem::path& checkpoint, const RunConfig& config, Log& log);

}  // namespace diptych

// What runs where no stage config and no checkpoint are named (Resolved::uses_demo).
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lib/base/log.h"
#include "lib/config/run_config.h"

namespace diptych {

// The stage config that comes with the binary: in the repository above a build folder, or in
// share/diptych of an installation.
std::optional<std::filesystem::path> find_demo();

std::string demo_notice(const RunConfig& run);
// For whoever asks (-v); of random weights, for all.
void note_demo(const RunConfig& run, Log& log);

}  // namespace diptych

// What runs where no stage config and no checkpoint are named (Resolved::uses_demo).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/log.h"
#include "lib/config/run_config.h"

namespace diptych {

// The stage configs of demos that come with the binary, that of pictures first: in the repository
// above a build folder, or in share/diptych of an installation.
std::vector<std::filesystem::path> find_demos();

std::string demo_notice(const RunConfig& run);
// For whoever asks (-v); of random weights, for all.
void note_demo(const RunConfig& run, Log& log);

}  // namespace diptych

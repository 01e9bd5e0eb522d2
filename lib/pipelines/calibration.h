// The calibration that TeaCache goes by, as a run names it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lib/config/run_config.h"
#include "lib/sampling/step_cache/step_calibration.h"

namespace diptych {

// As given, or the one beside the checkpoint.
std::filesystem::path calibration_path(const RunConfig& config);
// Nothing where the run has no TeaCache. Throws InputError, also where it is not there.
// `dummy_hash`: of weights that are not read, which it must then be of; "" where they are.
std::optional<StepCalibration> read_calibration(const RunConfig& config,
                                                const std::string& dummy_hash);

}  // namespace diptych

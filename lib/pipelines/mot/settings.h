// From a RunConfig to what texts and step caches of a MoT backbone take; what painting takes is in
// paint_request.h. Throws InputError for values that do not go together.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "lib/config/run_config.h"
#include "lib/pipelines/drafting/settings.h"
#include "lib/pipelines/inputs.h"
#include "lib/pipelines/mot/text.h"
#include "lib/sampling/step_cache/step_calibration.h"

namespace diptych {

// Of the answer, or of the plan. Throws as require_drafter().
TextRequest make_text_request(const RunConfig& config, const DraftSettings& drafts);

// Of TeaCache: as given, or the one beside the checkpoint.
std::filesystem::path calibration_path(const RunConfig& config);
// Nothing where the run has no TeaCache. Throws InputError, also where it is not there.
// `dummy_hash`: of weights that are not read, which it must then be of; "" where they are.
std::optional<StepCalibration> read_calibration(const RunConfig& config,
                                                const std::string& dummy_hash);

}  // namespace diptych

// From a RunConfig to what the parts on a MoT backbone take. Throws InputError for values that do
// not go together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/run_config.h"
#include "lib/pipelines/drafting/settings.h"
#include "lib/pipelines/inputs.h"
#include "lib/pipelines/mot/painter.h"
#include "lib/pipelines/mot/text.h"
#include "lib/sampling/step_cache/step_calibration.h"

namespace diptych {

// What was asked for and cannot have an effect in the steps that `paint` makes: warnings, each
// naming its flag.
std::vector<std::string> idle_settings(const RunConfig& config, const PaintRequest& paint);

// Of the answer, or of the plan. Throws as require_drafter().
TextRequest make_text_request(const RunConfig& config, const DraftSettings& drafts);

// All but its sizes, and batched for `auto`, which the session settles. `points`: of the schedule.
// `calibration`: of TeaCache, null without it. Throws as FlowSchedule::shifted.
PaintRequest make_paint_request(const RunConfig& config, std::vector<GuidanceTerm> terms,
                                std::int64_t points, const StepCalibration* calibration);

// Of TeaCache: as given, or the one beside the checkpoint.
std::filesystem::path calibration_path(const RunConfig& config);
// Nothing where the run has no TeaCache. Throws InputError, also where it is not there.
// `dummy_hash`: of weights that are not read, which it must then be of; "" where they are.
std::optional<StepCalibration> read_calibration(const RunConfig& config,
                                                const std::string& dummy_hash);

}  // namespace diptych

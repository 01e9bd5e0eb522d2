// From a RunConfig to what texts of a MoT backbone take; what painting takes is in paint_request.h.
// Throws InputError for values that do not go together.
#pragma once

#include "lib/config/run_config.h"
#include "lib/pipelines/drafting/settings.h"
#include "lib/pipelines/inputs.h"
#include "lib/pipelines/mot/text.h"

namespace diptych {

// Of the answer, or of the plan. Throws as require_drafter().
TextRequest make_text_request(const RunConfig& config, const DraftSettings& drafts);

}  // namespace diptych

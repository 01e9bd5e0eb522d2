// What the denoise steps of a request have to do, and the least time that it takes here.
#pragma once

#include <vector>

#include "lib/pipelines/mot/paint_request.h"
#include "lib/session/capabilities.h"

namespace diptych {

// As StepMeter::measure_steps, in the order in which the kinds of steps come.
std::vector<StepKindWork> measure_step_kinds(const MotModel& model, const PaintRequest& request,
                                             const PrefilledContexts& contexts,
                                             const Runtime& runtime, bool measures);

}  // namespace diptych

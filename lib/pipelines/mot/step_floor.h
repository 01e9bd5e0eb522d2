// What the denoise steps of a request have to do, and the least time that it takes here.
#pragma once

#include <vector>

#include "lib/pipelines/mot/painter.h"
#include "lib/session/session.h"

namespace diptych {

// As Session::study_steps, in the order in which the kinds of steps come.
std::vector<StepKindWork> study_bagel_steps(const BagelCheckpoint& checkpoint,
                                            const PaintRequest& request,
                                            const PrefilledContexts& contexts,
                                            const Runtime& runtime, bool measures);

}  // namespace diptych

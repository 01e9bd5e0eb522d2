// Steps of a MoT backbone that are timed (lib/session/cfg_mode.h).
#pragma once

#include <string>

#include "lib/pipelines/mot/paint_request.h"
#include "lib/session/cfg_mode.h"

namespace diptych {

// Times of the step with most branches, all of them computed, as the request's own steps run.
// `runtime` should have attention backends of its own, as they note what they serve. Draws from no
// generator of the request. Throws as time_cfg_modes().
CfgModeTimes time_widest_step(const MotModel& model, const PaintRequest& request,
                              const PrefilledContexts& contexts, const Runtime& runtime);

// Seconds of all steps of the request, by timing one of each kind, as the request's own steps run.
// All ranks that share the request call it. `runtime` as above. Throws as time_step().
double time_steps(const MotModel& model, const PaintRequest& request,
                  const PrefilledContexts& contexts, const Runtime& runtime);

// What the times depend on: "512x512, 2 contexts of up to 64 tokens", lengths to the next power of
// two; with ", launched one by one" where step graphs are not wished. `pixels_per_row`: of a latent
// row, a side.
std::string describe_step(const PaintRequest& request, const PrefilledContexts& contexts,
                          std::int64_t pixels_per_row);

}  // namespace diptych

// Steps that are timed: for `--cfg-mode auto`, which takes the faster way of running the guidance
// branches, and for ranks that choose how they divide a request.
#pragma once

#include <functional>
#include <string>

#include "lib/runtime/runtime.h"

namespace diptych {

struct CfgModeTimes {
  double batched = 0, sequential = 0;  // seconds of one step
};

// Of one step, which each function launches, behind a warm-up of each mode; `graphs`: as CUDA
// graphs, where the device has such. Both take turns: one step each, and more where these are
// short; the least seconds of each count. `together`: other ranks take the same steps, so that
// their number must not depend on a clock. Waits for the device; throws Interrupted.
CfgModeTimes time_cfg_modes(const std::function<void()>& batched,
                            const std::function<void()>& sequential, bool graphs, bool together,
                            c10::Device device);

// Least seconds of a few runs of the step that `launch` launches, behind a warm-up; `graphs` as
// above. As many on all ranks, which launch it together. Waits for the device; throws Interrupted.
double time_step(const std::function<void()>& launch, bool graphs, c10::Device device);

// How ranks divide a step, behind what else its time depends on: ", 2 x 1 x 2 ranks"; "" = one
// process does all of it.
std::string division_text(const Runtime& runtime);

}  // namespace diptych

// `--cfg-mode auto`: which way of running the guidance branches is the faster one here, measured.
#pragma once

#include <functional>

#include <c10/core/Device.h>

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

}  // namespace diptych

// `--cfg-mode auto`: which way of running the guidance branches is the faster one here, measured.
#pragma once

#include <string>

#include "lib/pipelines/mot/painter.h"

namespace diptych {

struct CfgModeTimes {
  double batched = 0, sequential = 0;  // seconds of one step
  CfgMode faster() const { return sequential < batched ? CfgMode::sequential : CfgMode::batched; }
};

// Of the step with most branches, all of them computed, behind a warm-up of each mode; as a CUDA
// graph where the request's own steps are one. Both modes take turns: one step each, and more where
// these are short; the least seconds of each count.
// `runtime` should have attention backends of its own, as they note what they serve. Draws from no
// generator of the request. Waits for the device; throws Interrupted.
CfgModeTimes time_cfg_modes(const BagelCheckpoint& checkpoint, const PaintRequest& request,
                            const PrefilledContexts& contexts, const Runtime& runtime);

// What the times depend on: "512x512, 2 contexts of up to 64 tokens", lengths to the next power of
// two; with ", launched one by one" where step graphs are not wished.
std::string describe_step(const BagelConfig& model, const PaintRequest& request,
                          const PrefilledContexts& contexts);

}  // namespace diptych

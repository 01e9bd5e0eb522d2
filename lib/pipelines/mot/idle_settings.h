// Settings of a request that cannot have an effect.
#pragma once

#include "lib/base/log.h"
#include "lib/pipelines/mot/paint_request.h"

namespace diptych {

// Warns of what was asked for and cannot have an effect in the steps that `paint` makes, by its
// flag.
void warn_of_idle_settings(const RunConfig& config, const PaintRequest& paint, Log& log);

}  // namespace diptych

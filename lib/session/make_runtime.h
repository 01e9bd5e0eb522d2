// Turns the names of a resolved run into a Runtime.
#pragma once

#include "lib/config/run_config.h"
#include "lib/runtime/runtime.h"

namespace diptych {

// Throws InputError for a device, dtype or attention backend that cannot be had, with the reason.
Runtime make_runtime(const RunConfig& config, Log& log);

}  // namespace diptych

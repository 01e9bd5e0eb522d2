// Turns the names of a resolved run into a Runtime.
#pragma once

#include <span>

#include "lib/config/run_config.h"
#include "lib/runtime/runtime.h"

namespace diptych {

// `roles`: the attention that the model has; each stage gets a backend for these. Throws InputError
// for a device, dtype or attention backend that cannot be had, with the reason.
Runtime make_runtime(const RunConfig& config, Log& log,
                     std::span<const AttentionRole> roles = kSelfAttention);

}  // namespace diptych

// Turns the names of a resolved run into a Runtime.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "lib/base/setting.h"
#include "lib/config/run_config.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/stored_dtype.h"

namespace diptych {

// `roles`: the attention that the model has; each stage gets a backend for these. `stored`: of its
// weights, asked where that decides the dtype. Throws InputError for a device, dtype or attention
// backend that cannot be had, with the reason, and RunError where the threads cannot.
Runtime make_runtime(const RunConfig& config, Log& log,
                     std::span<const AttentionRole> roles = kSelfAttention,
                     const std::function<StoredWeights()>& stored = {});

// Of a stage's attention, the field whose backend it takes: "read_attention", or
// "read_attention_self" where that is set apart.
Setting attention_setting(std::string_view field, const StageAttention& stage);

}  // namespace diptych

// Maps that are summed, normed and gated in one pass, on any device under any policy, held to the
// kernel's reference on the CPU.
#pragma once

#include "lib/ops/rms_norm_silu.h"

namespace diptych::testing {

void check_rms_norm_silu(at::Device device, KernelPolicy policy);
void check_rms_norm_silu_pairs(at::Device device, KernelPolicy policy);
void check_rms_norm_silu_arguments();

}  // namespace diptych::testing

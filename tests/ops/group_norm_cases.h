// GroupNorm and SiLU of feature maps, on any device under any policy, held to the kernel's
// reference on the CPU.
#pragma once

#include "lib/ops/group_norm.h"

namespace diptych::testing {

void check_group_norm(at::Device device, KernelPolicy policy);
void check_group_norm_arguments();

}  // namespace diptych::testing

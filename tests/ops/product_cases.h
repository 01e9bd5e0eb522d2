// Plain products of the released model's widths against float64.
#pragma once

#include "lib/ops/linear_operand.h"

namespace diptych::testing {

// In bfloat16, of values at unit scale: cosine at least 0.99999, no value off by more than 3.2e-2.
// `shrink`: what widths and the larger numbers of rows are divided by.
void check_plain_products(at::Device device, KernelPolicy policy, std::int64_t shrink);

}  // namespace diptych::testing

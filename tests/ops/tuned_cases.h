// Products and norms under tunings that make each possible choice.
#pragma once

#include "lib/ops/ops.h"

namespace diptych::testing {

// On a GPU: elsewhere nothing is chosen. Each choice gives what the reference gives on the CPU,
// within rounding, and the same bits again.
void check_tuned_products(at::Device device, KernelPolicy policy);
void check_tuned_norms(at::Device device, KernelPolicy policy);
// Quantised activations and rows: every choice gives the same bits.
void check_tuned_quantising(at::Device device, KernelPolicy policy);

}  // namespace diptych::testing

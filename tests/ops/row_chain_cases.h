// Layer norms with modulation, gated sums, and norms with rope over neighbouring pairs, on any
// device under any policy, held to the kernels' references on the CPU.
#pragma once

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych::testing {

void check_layer_norm(at::Device device, KernelPolicy policy);
void check_add_layer_norm(at::Device device, KernelPolicy policy);
void check_layer_norm_rows_quantized(at::Device device, KernelPolicy policy);
void check_layer_norm_arguments();
void check_rms_norm_rope(at::Device device, KernelPolicy policy);
void check_rms_norm_rope_arguments();
void check_axial_rope_table();

}  // namespace diptych::testing

// Products of linear layers: plain ones of the released model's widths against float64; those that
// share out their rows between two weights.
#pragma once

#include "lib/ops/linear_operand.h"

namespace diptych::testing {

// The released model's projections of 1 to 8208 rows: alone, of rows of two sets in no order, and
// gate and up with their activation by one kernel and by two. Products at unit scale: cosine at
// least 0.99999, no value off by more than 3.2e-2 in bfloat16, an eighth of that in float16.
// `shrink`: what widths and the larger numbers of rows are divided by.
void check_plain_products(at::Device device, KernelPolicy policy, std::int64_t shrink);
// Every row is that of a call with its weight alone; rows in neither set stay as they were.
void check_routed_products(at::Device device, KernelPolicy policy);
// What was faster on an H200 at BAGEL-7B's sizes, a quarter of the rows in the second set, is
// chosen.
void check_routed_choice();
// By one kernel and by two, for each set of rows: silu(gate) * up of the products of a call with
// its weight alone.
void check_gated_products(at::Device device, KernelPolicy policy);
// conv3d() with phases and a shortcut, in each dtype, is that of the kernel's reference in float32
// but for roundings.
void check_convolutions(at::Device device);
// conv3d() of pairs of frames, in each dtype, is that of the frames by three taps in float32 but
// for roundings.
void check_convolution_of_pairs(at::Device device);
void check_split_products(at::Device device);

}  // namespace diptych::testing

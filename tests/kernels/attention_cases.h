// hopper_attention on raw pointers: one body for the reference on the host and for the kernel on a
// GPU.
#pragma once

#include "kernels/hopper_attention/hopper_attention.h"
#include "tests/kernels/routed_cases.h"

namespace diptych::testing {

// Outputs and log-sum-exps are those of softmax in float64, with and without a causal mask, for
// heads that share keys, several samples (some without rows), numbers of rows and keys around the
// sizes of tiles, and keys that grow from one to the next; what lies around the outputs stays as it
// was.
void check_hopper_attention(const Runner<kernels::HopperAttentionArgs>& kernel);
// A row's bits are the same alone, beside other samples, and in a call that is launched otherwise.
void check_hopper_attention_alone(const Runner<kernels::HopperAttentionArgs>& kernel);

}  // namespace diptych::testing

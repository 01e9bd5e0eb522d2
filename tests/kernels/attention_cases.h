// hopper_attention and hopper_fp8_attention on raw pointers: one body for the reference on the host
// and for the kernel on a GPU.
#pragma once

#include "kernels/hopper_attention/hopper_attention.h"
#include "kernels/hopper_fp8_attention/hopper_fp8_attention.h"
#include "tests/kernels/routed_cases.h"

namespace diptych::testing {

// Outputs and log-sum-exps are those of softmax in float64, with and without a causal mask, for
// heads that share keys, several samples (some without rows), numbers of rows and keys around the
// sizes of tiles, and keys that grow from one to the next, also by more than float32 can weigh
// relative to the first ones; what lies around the outputs stays as it was.
void check_hopper_attention(const Runner<kernels::HopperAttentionArgs>& kernel);
// A row's bits are the same alone, beside other samples, and in a call that is launched otherwise.
void check_hopper_attention_alone(const Runner<kernels::HopperAttentionArgs>& kernel);
// The same of hopper_fp8_attention, over the operands as they are rounded.
void check_hopper_fp8_attention(const Runner<kernels::HopperFp8AttentionArgs>& kernel);
void check_hopper_fp8_attention_alone(const Runner<kernels::HopperFp8AttentionArgs>& kernel);

}  // namespace diptych::testing

#pragma once

#include "lib/ops/ops.h"

namespace diptych::testing {

// rope_attention() attends as the kernel's reference does, and leaves the cache as qk_norm_rope()
// does: of few rows over few and many keys, of more rows than one kernel takes, of heads that it
// does not take, with and without a causal mask.
void check_rope_attention(at::Device device, KernelPolicy policy);
// Steps of a text that are launched one behind the other, with the number of keys on the device.
void check_rope_attention_of_steps(at::Device device, KernelPolicy policy);
// Texts of several samples, and what is refused.
void check_rope_attention_of_samples(at::Device device, KernelPolicy policy);

}  // namespace diptych::testing

// One table of cases for every op, run on any device under any policy, and held to the kernels'
// references on the CPU.
#pragma once

#include "lib/ops/ops.h"

namespace diptych::testing {

// cos and sin at positions int64 [rows], theta 1e6.
std::pair<Tensor, Tensor> rope_table_at(const Tensor& positions, std::int64_t head_dim,
                                        at::ScalarType dtype);

void check_rms_norm(at::Device device, KernelPolicy policy);
void check_add_rms_norm(at::Device device, KernelPolicy policy);
void check_silu_mul(at::Device device, KernelPolicy policy);
void check_qk_norm_rope(at::Device device, KernelPolicy policy);
void check_routes(at::Device device, KernelPolicy policy);  // rms_norm, add_rms_norm_, qk_norm_rope
void check_no_trespassing(at::Device device, KernelPolicy policy);  // of qk_norm_rope in the cache
void check_linear_row(at::Device device, KernelPolicy policy);
void check_decode_attention(at::Device device, KernelPolicy policy);
void check_decode_attention_arguments();
void check_recorded(at::Device device, KernelPolicy policy);  // against torch's Python results

}  // namespace diptych::testing

// The kernels that route and those that quantise, on raw pointers: one body for the references on
// the host and for the kernels on a GPU.
#pragma once

#include <functional>

#include "kernels/dequantize_rows/dequantize_rows.h"
#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/silu_mul/silu_mul.h"
#include "tests/kernels/kernel_dtype.h"

namespace diptych::testing {

// What is under test, on pointers of `device`.
template <typename Args>
struct Runner {
  at::Device device;
  std::function<void(const Args&)> run;
};

// Every routed row is that of a call without routes; rows and margins around stay as they were.
void check_routed_rms_norm(const Runner<kernels::RmsNormArgs>& kernel);
void check_routed_qk_norm_rope(const Runner<kernels::QkNormRopeArgs>& kernel);
// Codes and scales are ATen's of what the kernel writes unquantised.
void check_quantised_rms_norm(const Runner<kernels::RmsNormArgs>& kernel);
void check_quantised_silu_mul(const Runner<kernels::SiluMulArgs>& kernel);
// The product of each code and its row's scale, rounded once.
void check_dequantize_rows(const Runner<kernels::DequantizeRowsArgs>& kernel);
// silu of each of the 65536 gates of 16 bits is the reference's, but for few roundings.
void check_silu_of_every_gate(const Runner<kernels::SiluMulArgs>& kernel);

}  // namespace diptych::testing

// The way from an op to its kernel: which calls take it, and the launch on the tensors' device and
// current stream. The one place of this library that a CUDA build compiles differently
// (kernel_call_cuda.cpp, kernel_call_none.cpp).
#pragma once

#include "kernels/conv3d/conv3d.h"
#include "kernels/decode_attention/decode_attention.h"
#include "kernels/dequantize_rows/dequantize_rows.h"
#include "kernels/gated_linear/gated_linear.h"
#include "kernels/group_norm_silu/group_norm_silu.h"
#include "kernels/hopper_attention/hopper_attention.h"
#include "kernels/hopper_fp8_attention/hopper_fp8_attention.h"
#include "kernels/int8_linear/int8_linear.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/linear_row/linear_row.h"
#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/quantize_attention/quantize_attention.h"
#include "kernels/quantize_rows/quantize_rows.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rms_norm_rope/rms_norm_rope.h"
#include "kernels/rms_norm_silu/rms_norm_silu.h"
#include "kernels/rope_attention/rope_attention.h"
#include "kernels/routed_linear/routed_linear.h"
#include "kernels/silu_mul/silu_mul.h"
#include "lib/ops/ops.h"

namespace diptych::ops {

// True where the call goes to the kernel, false for the reference. Throws InputError under `strict`
// for a device without kernels.
bool takes_kernel(const char* op, const Tensor& rows, KernelPolicy policy);

// The tuning of calls with rows of that dtype, or null: what is measured is of bfloat16.
const TuningTable* tuning_for(at::ScalarType dtype, const Kernels& kernels);

kernels::DType kernel_dtype(at::ScalarType dtype);  // of float32, bfloat16, float16
kernels::DType kernel_dtype(const Tensor& rows);
kernels::Stored stored_of(const Tensor& values);  // e4m3 or i8 of one-byte values, else plain

// Throw InputError where the kernel cannot take the call, RunError where the launch fails.
void launch(const kernels::RmsNormArgs& args, at::Device device);
void launch(const kernels::SiluMulArgs& args, at::Device device);
void launch(const kernels::QkNormRopeArgs& args, at::Device device);
void launch(const kernels::DecodeAttentionArgs& args, at::Device device);
void launch(const kernels::RopeAttentionArgs& args, at::Device device);
void launch(const kernels::HopperAttentionArgs& args, at::Device device);
void launch(const kernels::HopperFp8AttentionArgs& args, at::Device device);
void launch(const kernels::GroupNormTableArgs& args, at::Device device);
void launch(const kernels::GroupNormSiluArgs& args, at::Device device);
void launch(const kernels::LayerNormArgs& args, at::Device device);
void launch(const kernels::RmsNormRopeArgs& args, at::Device device);
void launch(const kernels::RmsNormSiluArgs& args, at::Device device);
void launch(const kernels::Conv3dArgs& args, at::Device device);
void launch(const kernels::LinearRowArgs& args, at::Device device);
void launch(const kernels::GatedLinearArgs& args, at::Device device);
void launch(const kernels::RoutedLinearArgs& args, at::Device device);
void launch(const kernels::Int8LinearArgs& args, at::Device device);
void launch(const kernels::QuantizeRowsArgs& args, at::Device device);
void launch(const kernels::QuantizeAttentionArgs& args, at::Device device);
void launch(const kernels::DequantizeRowsArgs& args, at::Device device);

// Whether the kernel has code for that device; its index must be set.
bool has_conv3d(at::Device device);
bool has_gated_linear(at::Device device);
bool has_hopper_attention(at::Device device);
bool has_int8_linear(at::Device device);
bool has_rope_attention(at::Device device);
// How many tiles that one computes at a time on the device, whose index must be set; 0: it has no
// code for it.
std::int64_t routed_linear_tiles(at::Device device);
// conv3d_workspace() on that device.
std::int64_t conv3d_workspace(const kernels::Conv3dArgs& args, at::Device device);

// Operands of at::_scaled_mm.
struct ScaledProduct {
  Tensor a, b;  // float8_e4m3fn [rows, inputs], and [inputs, outputs] column by column
  Tensor a_scales, b_scales;  // float32 [rows, 1], [1, outputs]
  Tensor bias;                // [outputs] of y's dtype, or undefined
};
// y [rows, outputs], bfloat16 or float16, by libtorch's row-wise scaled CUTLASS kernels, which take
// every number of rows and here sum in float32; sizes as for at::_scaled_mm. InputError in a build
// without CUDA.
void multiply_by_cutlass(Tensor y, const ScaledProduct& product);

}  // namespace diptych::ops

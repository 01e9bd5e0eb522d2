#include "lib/base/error.h"
#include "lib/ops/kernel_call.h"

// Asked ahead of a launch, so that another way can be taken: here there is none but the reference.
namespace diptych::kernels {

const char* gated_linear_unsupported(const GatedLinearArgs&) {
  return "this diptych was built without CUDA";
}
const char* routed_linear_unsupported(const RoutedLinearArgs&) {
  return "this diptych was built without CUDA";
}
const char* hopper_attention_unsupported(const HopperAttentionArgs&) {
  return "this diptych was built without CUDA";
}
const char* int8_linear_unsupported(const Int8LinearArgs&) {
  return "this diptych was built without CUDA";
}
const char* linear_row_unsupported(const LinearRowArgs&) {
  return "this diptych was built without CUDA";
}

}  // namespace diptych::kernels

namespace diptych::ops {
namespace {

[[noreturn]] void refuse(const char* op, at::Device device) {
  throw InputError(
      "[{}] there is no kernel for {}: this diptych was built without CUDA (kernels: reference "
      "needs none)",
      op, device.str());
}

}  // namespace

void launch(const kernels::RmsNormArgs&, at::Device device) {
  refuse("rms_norm", device);
}
void launch(const kernels::SiluMulArgs&, at::Device device) {
  refuse("silu_mul", device);
}
void launch(const kernels::QkNormRopeArgs&, at::Device device) {
  refuse("qk_norm_rope", device);
}

void launch(const kernels::DecodeAttentionArgs&, at::Device device) {
  refuse("decode_attention", device);
}
void launch(const kernels::RopeAttentionArgs&, at::Device device) {
  refuse("rope_attention", device);
}

void launch(const kernels::HopperAttentionArgs&, at::Device device) {
  refuse("hopper_attention", device);
}
void launch(const kernels::HopperFp8AttentionArgs&, at::Device device) {
  refuse("hopper_fp8_attention", device);
}
void launch(const kernels::GroupNormTableArgs&, at::Device device) {
  refuse("group_norm_table", device);
}
void launch(const kernels::GroupNormSiluArgs&, at::Device device) {
  refuse("group_norm_silu", device);
}
void launch(const kernels::LayerNormArgs&, at::Device device) {
  refuse("layer_norm", device);
}
void launch(const kernels::RmsNormRopeArgs&, at::Device device) {
  refuse("rms_norm_rope_", device);
}
void launch(const kernels::RmsNormSiluArgs&, at::Device device) {
  refuse("rms_norm_silu", device);
}
void launch(const kernels::Conv3dArgs&, at::Device device) {
  refuse("conv3d", device);
}
std::int64_t conv3d_workspace(const kernels::Conv3dArgs&, at::Device) {
  return 0;
}
bool has_conv3d(at::Device) {
  return false;
}
void launch(const kernels::LinearRowArgs&, at::Device device) {
  refuse("linear_row", device);
}
void launch(const kernels::GatedLinearArgs&, at::Device device) {
  refuse("gated_linear", device);
}
void launch(const kernels::RoutedLinearArgs&, at::Device device) {
  refuse("linear", device);
}
void launch(const kernels::Int8LinearArgs&, at::Device device) {
  refuse("linear", device);
}
bool has_int8_linear(at::Device) {
  return false;
}
bool has_rope_attention(at::Device) {
  return false;
}
bool has_hopper_attention(at::Device) {
  return false;
}
bool has_gated_linear(at::Device) {
  return false;
}
std::int64_t routed_linear_tiles(at::Device) {
  return 0;
}
void launch(const kernels::QuantizeRowsArgs&, at::Device device) {
  refuse("quantize_rows", device);
}
void launch(const kernels::QuantizeAttentionArgs&, at::Device device) {
  refuse("quantize_attention", device);
}
void launch(const kernels::DequantizeRowsArgs&, at::Device device) {
  refuse("dequantize_rows", device);
}

void multiply_by_cutlass(Tensor y, const ScaledProduct&) {
  refuse("linear", y.device());
}

}  // namespace diptych::ops

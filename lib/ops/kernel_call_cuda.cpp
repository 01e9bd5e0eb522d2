#include <array>
#include <mutex>

#include <ATen/native/cuda/RowwiseScaledMM.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "lib/base/error.h"
#include "lib/ops/kernel_call.h"

namespace diptych::ops {
namespace {

template <typename Args>
void launch_checked(const char* op, const Args& args, at::Device device,
                    const char* (*unsupported)(const Args&),
                    const char* (*run)(const Args&, CUstream_st*)) {
  if (const char* reason = unsupported(args)) {
    throw InputError("[{}] the CUDA kernel cannot take this call: {} (kernels: reference can)", op,
                     reason);
  }
  const c10::cuda::CUDAGuard guard(device);
  if (const char* error = run(args, c10::cuda::getCurrentCUDAStream(device.index()).stream())) {
    throw RunError("[{}] the kernel failed on {}: {}", op, device.str(), error);
  }
}

// What is asked of each device once.
template <typename T>
class PerDevice {
 public:
  T get(at::Device device, T (*ask)()) {
    const auto index = static_cast<std::size_t>(device.index());
    std::call_once(asked_.at(index), [&] {
      const c10::cuda::CUDAGuard guard(device);
      answers_[index] = ask();
    });
    return answers_[index];
  }

 private:
  static constexpr std::size_t kMostDevices = 64;
  std::array<std::once_flag, kMostDevices> asked_;
  std::array<T, kMostDevices> answers_{};
};

}  // namespace

void launch(const kernels::RmsNormArgs& args, at::Device device) {
  launch_checked("rms_norm", args, device, kernels::rms_norm_unsupported, kernels::rms_norm);
}

void launch(const kernels::SiluMulArgs& args, at::Device device) {
  launch_checked("silu_mul", args, device, kernels::silu_mul_unsupported, kernels::silu_mul);
}

void launch(const kernels::QkNormRopeArgs& args, at::Device device) {
  launch_checked("qk_norm_rope", args, device, kernels::qk_norm_rope_unsupported,
                 kernels::qk_norm_rope);
}

void launch(const kernels::DecodeAttentionArgs& args, at::Device device) {
  launch_checked("decode_attention", args, device, kernels::decode_attention_unsupported,
                 kernels::decode_attention);
}

void launch(const kernels::RopeAttentionArgs& args, at::Device device) {
  launch_checked("rope_attention", args, device, kernels::rope_attention_unsupported,
                 kernels::rope_attention);
}

bool has_rope_attention(at::Device device) {
  static PerDevice<bool> has;
  return has.get(device, kernels::rope_attention_runs_here);
}

void launch(const kernels::HopperAttentionArgs& args, at::Device device) {
  launch_checked("hopper_attention", args, device, kernels::hopper_attention_unsupported,
                 kernels::hopper_attention);
}

void launch(const kernels::HopperFp8AttentionArgs& args, at::Device device) {
  launch_checked("hopper_fp8_attention", args, device, kernels::hopper_fp8_attention_unsupported,
                 kernels::hopper_fp8_attention);
}

void launch(const kernels::GroupNormTableArgs& args, at::Device device) {
  launch_checked("group_norm_table", args, device, kernels::group_norm_table_unsupported,
                 kernels::group_norm_table);
}

void launch(const kernels::GroupNormSiluArgs& args, at::Device device) {
  launch_checked("group_norm_silu", args, device, kernels::group_norm_silu_unsupported,
                 kernels::group_norm_silu);
}

void launch(const kernels::LayerNormArgs& args, at::Device device) {
  launch_checked("layer_norm", args, device, kernels::layer_norm_unsupported, kernels::layer_norm);
}

void launch(const kernels::RmsNormRopeArgs& args, at::Device device) {
  launch_checked("rms_norm_rope_", args, device, kernels::rms_norm_rope_unsupported,
                 kernels::rms_norm_rope);
}

void launch(const kernels::RmsNormSiluArgs& args, at::Device device) {
  launch_checked("rms_norm_silu", args, device, kernels::rms_norm_silu_unsupported,
                 kernels::rms_norm_silu);
}

void launch(const kernels::Conv3dArgs& args, at::Device device) {
  launch_checked("conv3d", args, device, kernels::conv3d_unsupported, kernels::conv3d);
}

std::int64_t conv3d_workspace(const kernels::Conv3dArgs& args, at::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  return kernels::conv3d_workspace(args);
}

bool has_conv3d(at::Device device) {
  static PerDevice<bool> has;
  return has.get(device, kernels::conv3d_runs_here);
}

void launch(const kernels::LinearRowArgs& args, at::Device device) {
  launch_checked("linear_row", args, device, kernels::linear_row_unsupported, kernels::linear_row);
}

void launch(const kernels::GatedLinearArgs& args, at::Device device) {
  launch_checked("gated_linear", args, device, kernels::gated_linear_unsupported,
                 kernels::gated_linear);
}

void launch(const kernels::RoutedLinearArgs& args, at::Device device) {
  launch_checked("linear", args, device, kernels::routed_linear_unsupported,
                 kernels::routed_linear);
}

void launch(const kernels::Int8LinearArgs& args, at::Device device) {
  launch_checked("linear", args, device, kernels::int8_linear_unsupported, kernels::int8_linear);
}

bool has_int8_linear(at::Device device) {
  static PerDevice<bool> has;
  return has.get(device, kernels::int8_linear_runs_here);
}

bool has_hopper_attention(at::Device device) {
  static PerDevice<bool> has;
  return has.get(device, kernels::hopper_attention_runs_here);
}

bool has_gated_linear(at::Device device) {
  static PerDevice<bool> has;
  return has.get(device, kernels::gated_linear_runs_here);
}

std::int64_t routed_linear_tiles(at::Device device) {
  static PerDevice<std::int64_t> tiles;
  return tiles.get(device, kernels::routed_linear_tiles);
}

void launch(const kernels::QuantizeRowsArgs& args, at::Device device) {
  launch_checked("quantize_rows", args, device, kernels::quantize_rows_unsupported,
                 kernels::quantize_rows);
}

void launch(const kernels::QuantizeAttentionArgs& args, at::Device device) {
  launch_checked("quantize_attention", args, device, kernels::quantize_attention_unsupported,
                 kernels::quantize_attention);
}

void launch(const kernels::DequantizeRowsArgs& args, at::Device device) {
  launch_checked("dequantize_rows", args, device, kernels::dequantize_rows_unsupported,
                 kernels::dequantize_rows);
}

void multiply_by_cutlass(Tensor y, const ScaledProduct& product) {
  std::optional<Tensor> bias;
  if (product.bias.defined()) {
    bias = product.bias;
  } else if (y.scalar_type() == at::kHalf) {
    // torch 2.11 takes float16 from the bias: without one it would write bfloat16.
    bias = at::zeros({y.size(1)}, y.options());
  }
  const c10::cuda::CUDAGuard guard(y.device());
  at::cuda::detail::f8f8bf16_rowwise(product.a, product.b, product.a_scales, product.b_scales, bias,
                                     /*use_fast_accum=*/false, y);
}

}  // namespace diptych::ops

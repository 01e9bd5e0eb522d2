#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/linear_operand.h"
#include "lib/tuning/table.h"

namespace diptych {
namespace {

void check_gate_up(const Tensor& gate_up) {
  TORCH_CHECK(
      gate_up.defined() && gate_up.dim() == 2 && gate_up.size(1) >= 2 && gate_up.size(1) % 2 == 0,
      "[silu_mul] gate_up is ", gate_up.defined() ? gate_up.sizes() : at::IntArrayRef{},
      ", expected [rows, 2 * inner]");
  ops::check_values("silu_mul", "gate_up", gate_up, gate_up.sizes());
}

}  // namespace

Tensor silu_mul(const Tensor& gate_up, const Kernels& kernels) {
  return silu_mul(gate_up, Quantization::none, kernels).values;
}

LinearOperand silu_mul(const Tensor& gate_up, Quantization rows, const Kernels& kernels) {
  check_gate_up(gate_up);
  ops::check_row_format("silu_mul", rows);
  const LinearOperand y =
      LinearOperand::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options(), rows);
  silu_mul_into(y, gate_up, kernels);
  return y;
}

void silu_mul_into(const LinearOperand& y, const Tensor& gate_up, const Kernels& kernels) {
  check_gate_up(gate_up);
  const LaunchLabel label(launch_names::kSilu);
  const std::int64_t inner = gate_up.size(1) / 2;
  if (y.scales.defined()) {
    ops::check_table("silu_mul", "y", y.values, at::kFloat8_e4m3fn, {gate_up.size(0), inner},
                     gate_up);
  } else {
    ops::check_values("silu_mul", "y", y.values, {gate_up.size(0), inner}, gate_up);
  }
  if (!ops::takes_kernel("silu_mul", gate_up, kernels)) {
    Tensor plain = y.scales.defined() ? at::empty(y.values.sizes(), gate_up.options()) : y.values;
    at::silu_out(plain, gate_up.narrow(1, 0, inner)).mul_(gate_up.narrow(1, inner, inner));
    if (y.scales.defined()) quantize_rows(plain, y, kernels);
    return;
  }
  kernels::SiluMulArgs args;
  args.gate_up = gate_up.data_ptr();
  args.y = y.values.data_ptr();
  if (y.scales.defined()) args.scales = y.scales.data_ptr<float>();
  args.rows = gate_up.size(0);
  args.inner = inner;
  args.gate_up_stride = gate_up.stride(0);
  args.y_stride = y.values.stride(0);
  args.dtype = ops::kernel_dtype(gate_up);
  if (y.scales.defined()) {
    args.shape = static_cast<int>(choose_silu_vectors(
        ops::tuning_for(gate_up.scalar_type(), kernels), args.rows, args.inner));
  }
  ops::launch(args, gate_up.device());
}

}  // namespace diptych

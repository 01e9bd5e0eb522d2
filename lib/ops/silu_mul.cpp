#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/linear_operand.h"

namespace diptych {

Tensor silu_mul(const Tensor& gate_up, KernelPolicy policy) {
  return silu_mul(gate_up, Quantization::none, policy).values;
}

LinearOperand silu_mul(const Tensor& gate_up, Quantization rows, KernelPolicy policy) {
  TORCH_CHECK(
      gate_up.defined() && gate_up.dim() == 2 && gate_up.size(1) >= 2 && gate_up.size(1) % 2 == 0,
      "[silu_mul] gate_up is ", gate_up.defined() ? gate_up.sizes() : at::IntArrayRef{},
      ", expected [rows, 2 * inner]");
  ops::check_values("silu_mul", "gate_up", gate_up, gate_up.sizes());
  ops::check_row_format("silu_mul", rows);
  const std::int64_t inner = gate_up.size(1) / 2;
  if (!ops::takes_kernel("silu_mul", gate_up, policy)) {
    const Tensor plain =
        at::silu(gate_up.narrow(1, 0, inner)).mul_(gate_up.narrow(1, inner, inner));
    return quantize_rows(plain, rows, policy);
  }
  const LinearOperand y = LinearOperand::empty({gate_up.size(0), inner}, gate_up.options(), rows);
  kernels::SiluMulArgs args;
  args.gate_up = gate_up.data_ptr();
  args.y = y.values.data_ptr();
  if (y.scales.defined()) args.scales = y.scales.data_ptr<float>();
  args.rows = gate_up.size(0);
  args.inner = inner;
  args.gate_up_stride = gate_up.stride(0);
  args.y_stride = y.values.stride(0);
  args.dtype = ops::kernel_dtype(gate_up);
  ops::launch(args, gate_up.device());
  return y;
}

}  // namespace diptych

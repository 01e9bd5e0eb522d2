#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/ops.h"

namespace diptych {

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, KernelPolicy policy) {
  Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
  linear_into(y, x, weight, bias, policy);
  return y;
}

void linear_into(Tensor y, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 KernelPolicy policy) {
  ops::check_values("linear", "y", y, {x.size(0), weight.size(0)}, x);
  TORCH_CHECK(y.is_contiguous(), "[linear] y has strides ", y.strides());
  if (x.size(0) != 1 || !x.is_cuda() || policy == KernelPolicy::reference) {
    if (bias.defined()) {
      at::linear_out(y, x, weight, bias);
    } else {
      at::linear_out(y, x, weight);
    }
    return;
  }
  ops::check_values("linear", "x", x, x.sizes());
  ops::check_values("linear", "weight", weight, {weight.size(0), x.size(1)}, x);
  TORCH_CHECK(weight.is_contiguous(), "[linear] weight has strides ", weight.strides());
  if (bias.defined()) ops::check_values("linear", "bias", bias, {weight.size(0)}, x);
  kernels::LinearRowArgs args;
  args.x = x.data_ptr();
  args.weight = weight.data_ptr();
  args.bias = bias.defined() ? bias.data_ptr() : nullptr;
  args.y = y.data_ptr();
  args.inputs = x.size(1);
  args.outputs = weight.size(0);
  args.dtype = ops::kernel_dtype(x);
  ops::launch(args, x.device());
}

}  // namespace diptych

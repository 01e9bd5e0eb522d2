#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/ops.h"

namespace diptych {

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, KernelPolicy policy) {
  const bool one_row = x.dim() == 2 && x.size(0) == 1;
  if (!one_row || !x.is_cuda() || policy == KernelPolicy::reference) {
    return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
  }
  ops::check_values("linear", "x", x, x.sizes());
  ops::check_values("linear", "weight", weight, {weight.size(0), x.size(1)}, x);
  TORCH_CHECK(weight.is_contiguous(), "[linear] weight has strides ", weight.strides());
  if (bias.defined()) ops::check_values("linear", "bias", bias, {weight.size(0)}, x);
  const Tensor y = at::empty({1, weight.size(0)}, x.options());
  kernels::LinearRowArgs args;
  args.x = x.data_ptr();
  args.weight = weight.data_ptr();
  args.bias = bias.defined() ? bias.data_ptr() : nullptr;
  args.y = y.data_ptr();
  args.inputs = x.size(1);
  args.outputs = weight.size(0);
  args.dtype = ops::kernel_dtype(x);
  ops::launch(args, x.device());
  return y;
}

}  // namespace diptych

#include <algorithm>

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/linear_operand.h"
#include "lib/tuning/table.h"

namespace diptych {
namespace {

constexpr const char* kOp = "gated_linear";

kernels::GatedLinearArgs gated_args(const Tensor& x, const Tensor& weight) {
  kernels::GatedLinearArgs args;
  args.x = x.data_ptr();
  args.weight = weight.data_ptr();
  args.rows = x.size(0);
  args.inputs = x.size(1);
  args.inner = weight.size(0) / 2;
  args.x_stride = x.stride(0);
  args.y_stride = args.inner;
  args.dtype = ops::kernel_dtype(x);
  return args;
}

void check_weight(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.size(0) % 2 == 0 && weight.size(1) == x.size(1) &&
                  weight.is_contiguous(),
              "[", kOp, "] weight is ", weight.sizes(), ", expected [2 * inner, ", x.size(1), "]");
  ops::check_values(kOp, "weight", weight, weight.sizes(), x);
}

// y [rows, inner], packed.
void one_kernel(const Tensor& y, const Tensor& x, const Tensor& weight) {
  check_weight(x, weight);
  kernels::GatedLinearArgs args = gated_args(x, weight);
  args.y = y.data_ptr();
  ops::launch(args, x.device());
}

}  // namespace

bool has_gated_kernel(at::Device device) {
  return device.is_cuda() && ops::has_gated_linear(device);
}

bool gates_in_one_kernel(const Tensor& x, std::int64_t rows, const LinearOperand& weight,
                         const Kernels& kernels) {
  if (!x.is_cuda() || kernels.policy == KernelPolicy::reference || weight.scales.defined())
    return false;
  if (x.scalar_type() != at::kBFloat16 && x.scalar_type() != at::kHalf) return false;
  // What was measured is of bfloat16.
  const TuningTable* tuning = x.scalar_type() == at::kBFloat16 ? kernels.tuning : nullptr;
  const kernels::GatedLinearArgs args = gated_args(x, weight.values);
  return choose_gated_product(tuning, rows, args.inner, args.inputs) == GatedProduct::one_kernel &&
         kernels::gated_linear_unsupported(args) == nullptr && has_gated_kernel(x.device());
}

Tensor routed_gated_linear(const Tensor& x, std::span<const LinearRoute> routes,
                           const Kernels& kernels) {
  const auto any =
      std::ranges::find_if(routes, [](const LinearRoute& r) { return r.rows.count > 0; });
  TORCH_CHECK(any != routes.end(), "[", kOp, "] there are no rows");
  const std::int64_t outputs = any->weight.values.size(0);
  const bool lists = std::ranges::any_of(
      routes, [](const LinearRoute& r) { return r.rows.count > 0 && r.rows.index.defined(); });
  const auto in_one = [&](const LinearRoute& route) {
    return !lists && route.rows.count > 0 &&
           gates_in_one_kernel(x, route.rows.count, route.weight, kernels);
  };
  if (std::ranges::none_of(routes, in_one)) {
    const Tensor gate_up = at::empty({x.size(0), outputs}, x.options());
    routed_linear_into(gate_up, {x, {}}, routes, kernels);
    return silu_mul(gate_up, kernels);
  }
  const Tensor y = at::empty({x.size(0), outputs / 2}, x.options());
  for (const LinearRoute& route : routes) {
    if (route.rows.count == 0) continue;
    const Tensor part = x.narrow(0, route.rows.first, route.rows.count);
    const Tensor into = y.narrow(0, route.rows.first, route.rows.count);
    if (in_one(route)) {
      one_kernel(into, part, route.weight.values);
    } else {
      silu_mul_into({into, {}}, linear(part, route.weight, {}, kernels), kernels);
    }
  }
  return y;
}

}  // namespace diptych

#include <algorithm>
#include <vector>

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/linear_operand.h"
#include "lib/ops/row_sets.h"
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

// y [rows, inner].
void one_kernel(const Tensor& y, const Tensor& x, const Tensor& weight) {
  check_weight(x, weight);
  kernels::GatedLinearArgs args = gated_args(x, weight);
  TORCH_CHECK(y.size(1) == args.inner, "[", kOp, "] y is ", y.sizes(), ", weight ", weight.sizes());
  args.y = y.data_ptr();
  args.y_stride = y.stride(0);
  ops::launch(args, x.device());
}

}  // namespace

bool has_gated_kernel(at::Device device) {
  TORCH_CHECK(!device.is_cuda() || device.has_index(), "[", kOp, "] a device without its index");
  return device.is_cuda() && ops::has_gated_linear(device);
}

bool gates_in_one_kernel(const at::TensorOptions& options, std::int64_t rows, std::int64_t inner,
                         std::int64_t inputs, const Kernels& kernels) {
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  if (!options.device().is_cuda() || kernels.policy == KernelPolicy::reference ||
      (dtype != at::kBFloat16 && dtype != at::kHalf)) {
    return false;
  }
  constexpr std::int64_t kVector = 8;  // elements of 16 bytes
  return inner % kVector == 0 && inputs % kVector == 0 &&
         choose_gated_product(ops::tuning_for(dtype, kernels), rows, inner, inputs) ==
             GatedProduct::one_kernel &&
         has_gated_kernel(options.device());
}

namespace {

bool takes_one_kernel(const Tensor& x, const LinearRoute& route, const Kernels& kernels) {
  const LinearOperand& weight = route.weight;
  return route.rows.count > 0 && !weight.scales.defined() &&
         gates_in_one_kernel(x.options(), route.rows.count, weight.values.size(0) / 2, x.size(1),
                             kernels) &&
         kernels::gated_linear_unsupported(gated_args(x, weight.values)) == nullptr;
}

}  // namespace

Tensor routed_gated_linear(const Tensor& x, std::span<const LinearRoute> routes,
                           const Kernels& kernels) {
  const auto any =
      std::ranges::find_if(routes, [](const LinearRoute& r) { return r.rows.count > 0; });
  TORCH_CHECK(any != routes.end(), "[", kOp, "] there are no rows");
  TORCH_CHECK(x.dim() == 2 && x.stride(1) == 1, "[", kOp, "] x is ", x.sizes(), ", strides ",
              x.strides());
  std::vector<RowSet> sets;
  for (const LinearRoute& route : routes) sets.push_back(route.rows);
  ops::check_row_sets(kOp, sets, x);
  const std::int64_t outputs = any->weight.values.size(0);
  const bool lists = std::ranges::any_of(
      routes, [](const LinearRoute& r) { return r.rows.count > 0 && r.rows.index.defined(); });
  const auto in_one = [&](const LinearRoute& route) {
    return !lists && takes_one_kernel(x, route, kernels);
  };
  if (std::ranges::none_of(routes, in_one)) {
    const Tensor gate_up = at::empty({x.size(0), outputs}, x.options());
    routed_linear_into(gate_up, {x, {}}, routes, kernels);
    return silu_mul(gate_up, kernels);
  }
  const Tensor y = at::empty({x.size(0), outputs / 2}, x.options());
  for (const LinearRoute& route : routes) {
    if (route.rows.count == 0) continue;
    const LaunchLabel label(route.label);
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

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/linear_operand.h"
#include "lib/ops/row_sets.h"
#include "lib/tuning/table.h"

namespace diptych {
namespace {

void check_norm(const char* op, const Tensor& x, std::span<const NormRoute> routes, double eps) {
  TORCH_CHECK(x.defined() && x.dim() == 2 && x.size(1) >= 1, "[", op, "] x is ",
              x.defined() ? x.sizes() : at::IntArrayRef{}, ", expected [rows, width]");
  ops::check_values(op, "x", x, x.sizes());
  std::vector<RowSet> sets;
  for (const NormRoute& route : routes) {
    ops::check_values(op, "weight", route.weight, {x.size(1)}, x);
    sets.push_back(route.rows);
  }
  ops::check_row_sets(op, sets, x);
  TORCH_CHECK(eps >= 0, "[", op, "] eps is ", eps, ", expected >= 0");
}

// Operation by operation as transformers' Qwen2RMSNorm.
Tensor norm_rows(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor wide = x.to(at::kFloat);
  const Tensor scale = wide.pow(2).mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();  // [rows, 1]
  return wide.mul(scale).to(x.scalar_type()).mul_(weight);
}

Tensor norm_reference(const Tensor& x, std::span<const NormRoute> routes, double eps) {
  for (const NormRoute& route : routes) {
    if (ops::is_all_of(route.rows, x)) return norm_rows(x, route.weight, eps);
  }
  const Tensor y = at::empty(x.sizes(), x.options());
  for (const NormRoute& route : routes) {
    ops::put_rows(y, route.rows, norm_rows(ops::take_rows(x, route.rows), route.weight, eps));
  }
  return y;
}

void add_reference(const Tensor& x, const Tensor& delta, std::span<const NormRoute> routes) {
  for (const NormRoute& route : routes) {
    Tensor rows = ops::take_rows(x, route.rows);
    rows.add_(ops::take_rows(delta, route.rows));
    if (route.rows.index.defined()) ops::put_rows(x, route.rows, rows);
  }
}

kernels::RmsNormArgs norm_args(const Tensor& x, std::span<const NormRoute> routes,
                               const LinearOperand& y, double eps) {
  kernels::RmsNormArgs args;
  args.x = x.data_ptr();
  args.y = y.values.data_ptr();
  if (y.scales.defined()) args.scales = y.scales.data_ptr<float>();
  for (std::size_t i = 0; i < routes.size(); ++i) {
    args.sets[i] = {routes[i].weight.data_ptr(), ops::kernel_rows(routes[i].rows)};
  }
  args.rows = x.size(0);
  args.width = x.size(1);
  args.x_stride = x.stride(0);
  args.y_stride = y.values.stride(0);
  args.eps = static_cast<float>(eps);
  args.dtype = ops::kernel_dtype(x);
  return args;
}

// Vectors that a thread takes of a row.
int vectors_of(const Tensor& x, Quantization rows, const TuningTable* tuning) {
  NormVectors vectors = kUsualNormVectors;
  if (tuning != nullptr) {
    const TunedKernel kernel =
        rows == Quantization::fp8 ? TunedKernel::add_rms_norm_e4m3 : TunedKernel::add_rms_norm;
    if (const auto tuned = tuning->find(kernel, {x.size(1), 0, 0}, x.size(0)))
      vectors = static_cast<NormVectors>(*tuned);
  }
  return vectors == NormVectors::one ? 1 : vectors == NormVectors::two ? 2 : 4;
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, KernelPolicy policy) {
  const NormRoute all{weight, RowSet::range(0, x.size(0))};
  return rms_norm(x, std::span(&all, 1), eps, policy);
}

Tensor rms_norm(const Tensor& x, std::span<const NormRoute> routes, double eps,
                KernelPolicy policy) {
  return rms_norm(x, routes, eps, Quantization::none, policy).values;
}

LinearOperand rms_norm(const Tensor& x, std::span<const NormRoute> routes, double eps,
                       Quantization rows, KernelPolicy policy) {
  check_norm("rms_norm", x, routes, eps);
  ops::check_row_format("rms_norm", rows);
  const LaunchLabel label(launch_names::kNorm);
  if (!ops::takes_kernel("rms_norm", x, policy)) {
    return quantize_rows(norm_reference(x, routes, eps), rows, policy);
  }
  const LinearOperand y = LinearOperand::empty(x.sizes(), x.options(), rows);
  ops::launch(norm_args(x, routes, y, eps), x.device());
  return y;
}

Tensor add_rms_norm_(Tensor& x, const Tensor& delta, std::span<const NormRoute> routes, double eps,
                     const Kernels& kernels) {
  return add_rms_norm_(x, delta, routes, eps, Quantization::none, kernels).values;
}

LinearOperand add_rms_norm_(Tensor& x, const Tensor& delta, std::span<const NormRoute> routes,
                            double eps, Quantization rows, const Kernels& kernels) {
  check_norm("add_rms_norm_", x, routes, eps);
  ops::check_row_format("add_rms_norm_", rows);
  const LaunchLabel label(launch_names::kNorm);
  TORCH_CHECK(x.is_contiguous(), "[add_rms_norm_] x is not contiguous: strides ", x.strides());
  ops::check_values("add_rms_norm_", "delta", delta, x.sizes(), x);
  if (!ops::takes_kernel("add_rms_norm_", x, kernels)) {
    add_reference(x, delta, routes);
    return quantize_rows(norm_reference(x, routes, eps), rows, kernels);
  }
  const LinearOperand y = LinearOperand::empty(x.sizes(), x.options(), rows);
  kernels::RmsNormArgs args = norm_args(x, routes, y, eps);
  args.delta = delta.data_ptr();
  args.delta_stride = delta.stride(0);
  args.sum = x.data_ptr();
  args.sum_stride = x.stride(0);
  args.thread_vectors = vectors_of(x, rows, ops::tuning_for(x.scalar_type(), kernels));
  ops::launch(args, x.device());
  return y;
}

}  // namespace diptych

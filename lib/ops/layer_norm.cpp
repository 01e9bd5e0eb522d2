#include "lib/ops/layer_norm.h"

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

void check_groups(const char* op, const Tensor& groups, const Tensor& x) {
  if (groups.defined()) ops::check_table(op, "groups", groups, at::kLong, {x.size(0)}, x);
}

// A table of x's width in float32, one row for each group.
void check_terms(const char* op, const char* name, const Tensor& table, const Tensor& x) {
  TORCH_CHECK(table.defined() && table.dim() == 2 && table.size(0) > 0, "[", op, "] ", name,
              " is not [groups, width]");
  ops::check_values(op, name, table, {table.size(0), x.size(1)});
  TORCH_CHECK(table.scalar_type() == at::kFloat && table.device() == x.device(), "[", op, "] ",
              name, " is ", table.scalar_type(), " on ", table.device(), ", expected float32 on ",
              x.device());
}

void check_rows(const char* op, const Tensor& x) {
  TORCH_CHECK(x.defined() && x.dim() == 2 && x.size(1) > 0, "[", op, "] x is not [rows, width]");
  ops::check_values(op, "x", x, x.sizes());
}

void check_norm(const char* op, const Tensor& x, const NormTerms& terms, double eps,
                Quantization rows) {
  check_rows(op, x);
  check_terms(op, "factor", terms.factor, x);
  check_terms(op, "offset", terms.offset, x);
  TORCH_CHECK(terms.factor.size(0) == terms.offset.size(0), "[", op, "] factor ",
              terms.factor.sizes(), " and offset ", terms.offset.sizes());
  check_groups(op, terms.groups, x);
  TORCH_CHECK(eps >= 0, "[", op, "] eps is ", eps);
  ops::check_row_format(op, rows);
}

void check_sum(const char* op, const Tensor& x, const GatedSum& sum) {
  check_rows(op, x);
  TORCH_CHECK(x.is_contiguous(), "[", op, "] x is not contiguous: strides ", x.strides());
  ops::check_values(op, "delta", sum.delta, x.sizes(), x);
  if (sum.gate.defined()) check_terms(op, "gate", sum.gate, x);
  check_groups(op, sum.groups, x);
}

// Of each row, [rows or 1, width].
Tensor of_rows(const Tensor& table, const Tensor& groups) {
  return groups.defined() ? table.index_select(0, groups) : table.narrow(0, 0, 1);
}

Tensor norm_reference(const Tensor& x, const NormTerms& terms, double eps) {
  Tensor factor = of_rows(terms.factor, terms.groups);
  if (terms.beside_one) factor = factor + 1;
  const Tensor unit = at::layer_norm(x.to(at::kFloat), {x.size(1)}, {}, {}, eps);
  return (unit * factor + of_rows(terms.offset, terms.groups)).to(x.scalar_type());
}

void sum_reference(Tensor& x, const GatedSum& sum) {
  if (!sum.gate.defined()) {
    x.add_(sum.delta);
    return;
  }
  x.copy_(x.to(at::kFloat) + sum.delta * of_rows(sum.gate, sum.groups));
}

kernels::LayerNormArgs::Table kernel_table(const Tensor& table) {
  return {table.const_data_ptr<float>(), ops::stride_of(table, 0)};
}

kernels::LayerNormArgs::Groups kernel_groups(const Tensor& groups, const Tensor& table) {
  return {groups.defined() ? groups.const_data_ptr<std::int64_t>() : nullptr, table.size(0)};
}

kernels::LayerNormArgs base_args(const Tensor& x) {
  kernels::LayerNormArgs args;
  args.x = x.data_ptr();
  args.x_stride = x.stride(0);
  args.rows = x.size(0);
  args.width = x.size(1);
  args.dtype = ops::kernel_dtype(x);
  return args;
}

void add_norm(kernels::LayerNormArgs& args, const NormTerms& terms, double eps,
              const LinearOperand& y) {
  args.y = y.values.data_ptr();
  args.y_stride = y.values.stride(0);
  args.scales = y.scales.defined() ? y.scales.data_ptr<float>() : nullptr;
  args.factor = kernel_table(terms.factor);
  args.offset = kernel_table(terms.offset);
  args.groups = kernel_groups(terms.groups, terms.factor);
  args.base = terms.beside_one ? 1.0F : 0.0F;
  args.eps = static_cast<float>(eps);
}

void add_sum(kernels::LayerNormArgs& args, const Tensor& x, const GatedSum& sum) {
  args.delta = sum.delta.data_ptr();
  args.delta_stride = sum.delta.stride(0);
  args.sum = x.data_ptr();
  args.sum_stride = x.stride(0);
  if (!sum.gate.defined()) return;
  args.gate = kernel_table(sum.gate);
  args.gate_groups = kernel_groups(sum.groups, sum.gate);
}

}  // namespace

LinearOperand layer_norm(const Tensor& x, const NormTerms& terms, double eps, Quantization rows,
                         const Kernels& kernels) {
  check_norm("layer_norm", x, terms, eps, rows);
  const LaunchLabel label(launch_names::kNorm);
  if (!ops::takes_kernel("layer_norm", x, kernels))
    return quantize_rows(norm_reference(x, terms, eps), rows, kernels);
  const LinearOperand y = LinearOperand::empty(x.sizes(), x.options(), rows);
  kernels::LayerNormArgs args = base_args(x);
  add_norm(args, terms, eps, y);
  ops::launch(args, x.device());
  return y;
}

LinearOperand add_layer_norm_(Tensor& x, const GatedSum& sum, const NormTerms& terms, double eps,
                              Quantization rows, const Kernels& kernels) {
  check_norm("add_layer_norm_", x, terms, eps, rows);
  check_sum("add_layer_norm_", x, sum);
  const LaunchLabel label(launch_names::kNorm);
  if (!ops::takes_kernel("add_layer_norm_", x, kernels)) {
    sum_reference(x, sum);
    return quantize_rows(norm_reference(x, terms, eps), rows, kernels);
  }
  const LinearOperand y = LinearOperand::empty(x.sizes(), x.options(), rows);
  kernels::LayerNormArgs args = base_args(x);
  add_sum(args, x, sum);
  add_norm(args, terms, eps, y);
  ops::launch(args, x.device());
  return y;
}

void add_gated_(Tensor& x, const GatedSum& sum, const Kernels& kernels) {
  check_sum("add_gated_", x, sum);
  const LaunchLabel label(launch_names::kNorm);
  if (!ops::takes_kernel("add_gated_", x, kernels)) return sum_reference(x, sum);
  kernels::LayerNormArgs args = base_args(x);
  add_sum(args, x, sum);
  ops::launch(args, x.device());
}

}  // namespace diptych

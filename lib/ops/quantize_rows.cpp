#include <limits>

#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/linear_operand.h"
#include "lib/tuning/table.h"

namespace diptych {
namespace {

constexpr const char* kOp = "quantize_rows";

void check_arguments(const Tensor& x, const LinearOperand& into) {
  TORCH_CHECK(x.defined() && x.dim() == 2 && x.size(1) >= 1, "[", kOp, "] x is ",
              x.defined() ? x.sizes() : at::IntArrayRef{}, ", expected [rows, width]");
  ops::check_values(kOp, "x", x, x.sizes());
  TORCH_CHECK(into.values.defined() && into.values.element_size() == 1, "[", kOp,
              "] values are not float8_e4m3fn or int8");
  ops::check_table(
      kOp, "values", into.values,
      ops::stored_of(into.values) == kernels::Stored::e4m3 ? at::kFloat8_e4m3fn : at::kChar,
      x.sizes(), x);
  ops::check_table(kOp, "scales", into.scales, at::kFloat, {x.size(0)}, x);
}

void reference(const Tensor& x, const LinearOperand& into) {
  const bool fp8 = into.values.scalar_type() == at::kFloat8_e4m3fn;
  const double limit = kernels::stored_limit(ops::stored_of(into.values));
  const Tensor wide = x.to(at::kFloat);
  // Divided by a tensor: by a number it would be multiplied with the reciprocal on CUDA.
  const Tensor scales = wide.abs()
                            .amax(1, /*keepdim=*/true)
                            .div_(at::full({1}, limit, wide.options()))
                            .clamp_min_(std::numeric_limits<float>::min());  // [rows, 1]
  Tensor values = wide.mul(scales.reciprocal());
  if (!fp8) values = values.round_().nan_to_num_(0.0).clamp_(-limit, limit);
  into.values.copy_(values);
  into.scales.copy_(scales.squeeze(1));
}

void launch(const Tensor& x, const LinearOperand& into, kernels::Activation activation,
            const Kernels& kernels) {
  kernels::QuantizeRowsArgs args;
  args.x = x.data_ptr();
  args.values = into.values.data_ptr();
  args.scales = into.scales.data_ptr<float>();
  args.rows = x.size(0);
  args.width = x.size(1);
  args.x_stride = x.stride(0);
  args.dtype = ops::kernel_dtype(x);
  args.stored = ops::stored_of(into.values);
  args.activation = activation;
  const bool e4m3 = args.stored == kernels::Stored::e4m3;
  args.shape = static_cast<int>(choose_quantize_vectors(
      e4m3 ? ops::tuning_for(x.scalar_type(), kernels) : nullptr, args.rows, args.width));
  ops::launch(args, x.device());
}

}  // namespace

at::ScalarType stored_dtype(Quantization quantization, at::ScalarType plain) {
  switch (quantization) {
    case Quantization::none:
      return plain;
    case Quantization::fp8:
      return at::kFloat8_e4m3fn;
    case Quantization::int8:
      return at::kChar;
  }
  TORCH_CHECK(false, "[stored_dtype] no such quantization");
}

LinearOperand LinearOperand::empty(at::IntArrayRef shape, const at::TensorOptions& options,
                                   Quantization quantization) {
  const at::ScalarType plain = c10::typeMetaToScalarType(options.dtype());
  LinearOperand operand{at::empty(shape, options.dtype(stored_dtype(quantization, plain))), {}};
  if (quantization != Quantization::none)
    operand.scales = at::empty(shape.front(), options.dtype(at::kFloat));
  return operand;
}

void quantize_rows(const Tensor& x, const LinearOperand& into, const Kernels& kernels) {
  check_arguments(x, into);
  if (x.size(0) == 0) return;
  const LaunchLabel label(launch_names::kQuantise);
  if (!ops::takes_kernel(kOp, x, kernels)) return reference(x, into);
  launch(x, into, kernels::Activation::none, kernels);
}

LinearOperand gelu_(Tensor x, Gelu gelu, Quantization rows, const Kernels& kernels) {
  const LaunchLabel label(launch_names::kGelu);
  if (rows != Quantization::fp8 || x.size(0) == 0 || !ops::takes_kernel(kOp, x, kernels)) {
    at::gelu_(x, gelu == Gelu::tanh ? "tanh" : "none");
    return quantize_rows(x, rows, kernels);
  }
  const LinearOperand into = LinearOperand::empty(x.sizes(), x.options(), rows);
  check_arguments(x, into);
  launch(x, into, gelu == Gelu::tanh ? kernels::Activation::gelu_tanh : kernels::Activation::gelu,
         kernels);
  return into;
}

LinearOperand quantize_rows(const Tensor& x, Quantization quantization, const Kernels& kernels) {
  if (quantization == Quantization::none) return {x, {}};
  const LinearOperand rows = LinearOperand::empty(x.sizes(), x.options(), quantization);
  quantize_rows(x, rows, kernels);
  return rows;
}

}  // namespace diptych

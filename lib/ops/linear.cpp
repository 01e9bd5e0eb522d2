#include "lib/base/error.h"
#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/linear_weight.h"

namespace diptych {
namespace {

constexpr const char* kOp = "linear";

Tensor plain_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
}

void check_arguments(const Tensor& x, const LinearWeight& weight, const Tensor& bias) {
  ops::check_values(kOp, "x", x, x.sizes());
  const std::int64_t outputs = weight.values.size(0);
  if (!weight.scales.defined()) {
    ops::check_values(kOp, "weight", weight.values, {outputs, x.size(1)}, x);
  } else {
    const at::ScalarType stored = weight.values.scalar_type();
    TORCH_CHECK(stored == at::kFloat8_e4m3fn || stored == at::kChar, "[", kOp, "] weight is ",
                stored, " with scales, expected float8_e4m3fn or int8");
    ops::check_table(kOp, "weight", weight.values, stored, {outputs, x.size(1)}, x);
    ops::check_table(kOp, "scales", weight.scales, at::kFloat, {outputs}, x);
  }
  TORCH_CHECK(weight.values.is_contiguous(), "[", kOp, "] weight has strides ",
              weight.values.strides());
  if (bias.defined()) ops::check_values(kOp, "bias", bias, {outputs}, x);
}

Tensor kernel_of_few_rows(const Tensor& x, const LinearWeight& weight, const Tensor& bias) {
  const Tensor rows = x.contiguous();
  const Tensor y = at::empty({x.size(0), weight.values.size(0)}, x.options());
  kernels::LinearRowArgs args;
  args.x = rows.data_ptr();
  args.weight = weight.values.data_ptr();
  args.scales = weight.scales.defined() ? weight.scales.data_ptr<float>() : nullptr;
  args.bias = bias.defined() ? bias.data_ptr() : nullptr;
  args.y = y.data_ptr();
  args.rows = x.size(0);
  args.inputs = x.size(1);
  args.outputs = weight.values.size(0);
  args.dtype = ops::kernel_dtype(x);
  args.stored = ops::stored_of(weight.values);
  ops::launch(args, x.device());
  return y;
}

// Sums times scales plus bias, in float32, rounded once to x's dtype.
Tensor finish_sums(Tensor sums, const Tensor& x, const LinearWeight& weight, const Tensor& bias) {
  sums.mul_(weight.scales);
  if (bias.defined()) sums.add_(bias);
  return sums.to(x.scalar_type());
}

Tensor reference_of_few_rows(const Tensor& x, const LinearWeight& weight, const Tensor& bias) {
  return finish_sums(at::linear(x.to(at::kFloat), weight.values.to(at::kFloat)), x, weight, bias);
}

LinearWeight quantize(const Tensor& x, KernelPolicy policy) {
  const LinearWeight rows = {at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn)),
                             at::empty({x.size(0)}, x.options().dtype(at::kFloat))};
  quantize_rows(x, rows, policy);
  return rows;
}

// Row-wise scaled, one rounding behind the bias. The fast accumulation of Hopper keeps about 14
// bits of a sum (DeepSeek-V3 Technical Report, section 3.3.2), which is small beside e4m3's four.
Tensor fp8_product(const Tensor& x, const LinearWeight& weight, const Tensor& bias,
                   KernelPolicy policy) {
  const std::int64_t outputs = weight.values.size(0), inputs = weight.values.size(1);
  if (x.scalar_type() == at::kFloat) {
    throw InputError("[{}] fp8 products on CUDA are of bfloat16 or float16 rows, these are float32",
                     kOp);
  }
  if (outputs % 16 != 0 || inputs % 16 != 0) {
    throw InputError(
        "[{}] fp8 products on CUDA: found a weight of {} x {}, expected multiples of 16", kOp,
        outputs, inputs);
  }
  const LinearWeight rows = quantize(x, policy);
  const std::optional<Tensor> offset = bias.defined() ? std::optional(bias) : std::nullopt;
  return at::_scaled_mm(rows.values, weight.values.t(), rows.scales.unsqueeze(1),
                        weight.scales.unsqueeze(0), offset, {}, x.scalar_type(),
                        /*use_fast_accum=*/true);
}

Tensor fp8_reference(const Tensor& x, const LinearWeight& weight, const Tensor& bias) {
  const LinearWeight rows = quantize(x, KernelPolicy::reference);
  Tensor sums = at::linear(rows.values.to(at::kFloat), weight.values.to(at::kFloat));
  return finish_sums(sums.mul_(rows.scales.unsqueeze(1)), x, weight, bias);
}

// The weight in x's dtype.
Tensor dequantize(const LinearWeight& weight, const Tensor& x, bool by_kernel) {
  if (!by_kernel) {
    return weight.values.to(at::kFloat).mul_(weight.scales.unsqueeze(1)).to(x.scalar_type());
  }
  const Tensor y = at::empty(weight.values.sizes(), x.options());
  kernels::DequantizeRowsArgs args;
  args.values = weight.values.data_ptr();
  args.scales = weight.scales.data_ptr<float>();
  args.y = y.data_ptr();
  args.rows = y.size(0);
  args.width = y.size(1);
  args.dtype = ops::kernel_dtype(x);
  args.stored = ops::stored_of(weight.values);
  ops::launch(args, x.device());
  return y;
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, KernelPolicy policy) {
  const bool one_row = x.dim() == 2 && x.size(0) == 1;
  if (!one_row || !x.is_cuda() || policy == KernelPolicy::reference)
    return plain_linear(x, weight, bias);
  const LinearWeight plain = {weight, {}};
  check_arguments(x, plain, bias);
  return kernel_of_few_rows(x, plain, bias);
}

Tensor linear(const Tensor& x, const LinearWeight& weight, const Tensor& bias,
              KernelPolicy policy) {
  if (!weight.scales.defined()) return linear(x, weight.values, bias, policy);
  TORCH_CHECK(x.defined() && x.dim() == 2, "[", kOp, "] x is not [rows, inputs]");
  check_arguments(x, weight, bias);
  const bool fp8 = weight.values.scalar_type() == at::kFloat8_e4m3fn;
  const bool by_kernel = ops::takes_kernel(kOp, x, policy);
  const std::int64_t rows = x.size(0);
  if (rows == 0) return at::empty({0, weight.values.size(0)}, x.options());
  if (rows <= (fp8 ? 1 : kernels::kMostLinearRows)) {
    return by_kernel ? kernel_of_few_rows(x, weight, bias) : reference_of_few_rows(x, weight, bias);
  }
  if (!fp8) return plain_linear(x, dequantize(weight, x, by_kernel), bias);
  return by_kernel ? fp8_product(x, weight, bias, policy) : fp8_reference(x, weight, bias);
}

}  // namespace diptych

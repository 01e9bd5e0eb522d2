#include <optional>
#include <vector>

#include "lib/base/error.h"
#include "lib/ops/checks.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/linear_operand.h"
#include "lib/ops/row_sets.h"
#include "lib/tuning/table.h"

namespace diptych {
namespace {

constexpr const char* kOp = "linear";

void check_rows(const Tensor& y, const LinearOperand& x) {
  if (!x.scales.defined()) return ops::check_values(kOp, "x", x.values, x.values.sizes(), y);
  ops::check_table(kOp, "x", x.values, at::kFloat8_e4m3fn, x.values.sizes(), y);
  ops::check_table(kOp, "scales of x", x.scales, at::kFloat, {x.values.size(0)}, y);
}

void check_weight(const Tensor& y, at::IntArrayRef shape, const LinearOperand& weight) {
  if (!weight.scales.defined()) {
    ops::check_values(kOp, "weight", weight.values, shape, y);
  } else {
    const at::ScalarType stored = weight.values.scalar_type();
    TORCH_CHECK(stored == at::kFloat8_e4m3fn || stored == at::kChar, "[", kOp, "] weight is ",
                stored, " with scales, expected float8_e4m3fn or int8");
    ops::check_table(kOp, "weight", weight.values, stored, shape, y);
    ops::check_table(kOp, "scales", weight.scales, at::kFloat, {shape.front()}, y);
  }
  TORCH_CHECK(weight.values.is_contiguous(), "[", kOp, "] weight has strides ",
              weight.values.strides());
}

void check_arguments(const Tensor& y, const LinearOperand& x, const LinearOperand& weight,
                     const Tensor& bias) {
  TORCH_CHECK(x.values.defined() && x.values.dim() == 2, "[", kOp, "] x is not [rows, inputs]");
  TORCH_CHECK(weight.values.defined() && weight.values.dim() == 2, "[", kOp,
              "] weight is not [outputs, inputs]");
  const std::int64_t outputs = weight.values.size(0);
  ops::check_values(kOp, "y", y, {x.values.size(0), outputs});
  TORCH_CHECK(y.is_contiguous(), "[", kOp, "] y has strides ", y.strides());
  check_rows(y, x);
  check_weight(y, {outputs, x.values.size(1)}, weight);
  TORCH_CHECK(!x.scales.defined() || weight.values.scalar_type() == at::kFloat8_e4m3fn, "[", kOp,
              "] rows of float8_e4m3fn meet a weight of ", weight.values.scalar_type());
  if (bias.defined()) ops::check_values(kOp, "bias", bias, {outputs}, y);
}

// x is contiguous.
kernels::LinearRowArgs few_rows_args(const Tensor& y, const LinearOperand& x,
                                     const LinearOperand& weight, const Tensor& bias) {
  kernels::LinearRowArgs args;
  args.x = x.values.data_ptr();
  args.x_scales = x.scales.defined() ? x.scales.data_ptr<float>() : nullptr;
  args.weight = weight.values.data_ptr();
  args.scales = weight.scales.defined() ? weight.scales.data_ptr<float>() : nullptr;
  args.bias = bias.defined() ? bias.data_ptr() : nullptr;
  args.y = y.data_ptr();
  args.rows = x.values.size(0);
  args.inputs = x.values.size(1);
  args.outputs = weight.values.size(0);
  args.dtype = ops::kernel_dtype(y);
  args.stored = ops::stored_of(weight.values);
  return args;
}

void kernel_of_few_rows(Tensor y, const LinearOperand& x, const LinearOperand& weight,
                        const Tensor& bias, int shape) {
  const Tensor rows = x.values.contiguous();
  kernels::LinearRowArgs args = few_rows_args(y, {rows, x.scales}, weight, bias);
  args.shape = shape;
  ops::launch(args, y.device());
}

void aten_product(Tensor y, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (bias.defined()) {
    at::linear_out(y, x, weight, bias);
  } else {
    at::linear_out(y, x, weight);
  }
}

// In float32, rounded once.
void reference_product(Tensor y, const LinearOperand& x, const LinearOperand& weight,
                       const Tensor& bias) {
  Tensor sums = at::linear(x.values.to(at::kFloat), weight.values.to(at::kFloat));
  if (x.scales.defined()) sums.mul_(x.scales.unsqueeze(1));
  sums.mul_(weight.scales);
  if (bias.defined()) sums.add_(bias);
  y.copy_(sums);
}

// A part of a call's rows begins anywhere; cuBLASLt wants scales at multiples of 16 bytes.
Tensor aligned_scales(const Tensor& scales) {
  constexpr std::uintptr_t kAlignment = 16;
  const bool aligned = reinterpret_cast<std::uintptr_t>(scales.data_ptr()) % kAlignment == 0;
  return aligned ? scales : scales.clone();
}

// Row-wise scaled, one rounding behind the bias. The fast accumulation of Hopper keeps about 14
// bits of a sum (DeepSeek-V3 Technical Report, section 3.3.2), which is small beside e4m3's four.
void fp8_product(Tensor y, const LinearOperand& x, const LinearOperand& weight, const Tensor& bias,
                 bool by_cutlass) {
  const std::int64_t outputs = weight.values.size(0), inputs = weight.values.size(1);
  if (y.scalar_type() == at::kFloat) {
    throw InputError("[{}] fp8 products on CUDA are of bfloat16 or float16 rows, these are float32",
                     kOp);
  }
  if (outputs % 16 != 0 || inputs % 16 != 0) {
    throw InputError(
        "[{}] fp8 products on CUDA: found a weight of {} x {}, expected multiples of 16", kOp,
        outputs, inputs);
  }
  const ops::ScaledProduct product = {x.values, weight.values.t(),
                                      aligned_scales(x.scales).unsqueeze(1),
                                      weight.scales.unsqueeze(0), bias};
  if (by_cutlass) return ops::multiply_by_cutlass(y, product);
  const std::optional<Tensor> offset = bias.defined() ? std::optional(bias) : std::nullopt;
  at::_scaled_mm_out(y, product.a, product.b, product.a_scales, product.b_scales, offset, {},
                     y.scalar_type(), /*use_fast_accum=*/true);
}

// The weight of int8 in y's dtype.
Tensor dequantize(const LinearOperand& weight, const Tensor& y, bool by_kernel) {
  if (!by_kernel) {
    return weight.values.to(at::kFloat).mul_(weight.scales.unsqueeze(1)).to(y.scalar_type());
  }
  const LaunchLabel label(launch_names::kDequantise);
  const Tensor plain = at::empty(weight.values.sizes(), y.options());
  kernels::DequantizeRowsArgs args;
  args.values = weight.values.data_ptr<std::int8_t>();
  args.scales = weight.scales.data_ptr<float>();
  args.y = plain.data_ptr();
  args.rows = plain.size(0);
  args.width = plain.size(1);
  args.dtype = ops::kernel_dtype(plain);
  ops::launch(args, plain.device());
  return plain;
}

kernels::Int8LinearArgs mixed_args(const Tensor& y, const Tensor& x, const LinearOperand& weight,
                                   const Tensor& bias, int shape) {
  kernels::Int8LinearArgs args;
  args.x = x.data_ptr();
  args.weight = weight.values.data_ptr<std::int8_t>();
  args.scales = weight.scales.data_ptr<float>();
  args.bias = bias.defined() ? bias.data_ptr() : nullptr;
  args.y = y.data_ptr();
  args.rows = x.size(0);
  args.inputs = x.size(1);
  args.outputs = y.size(1);
  args.x_stride = x.stride(0);
  args.y_stride = y.stride(0);
  args.dtype = ops::kernel_dtype(y);
  args.shape = shape;
  return args;
}

// By the kernel that needs no copy of the weight, if it takes these.
bool mixed_into(const Tensor& y, const Tensor& x, const LinearOperand& weight, const Tensor& bias,
                int shape) {
  if (x.stride(1) != 1 || !ops::has_int8_linear(y.device())) return false;
  const kernels::Int8LinearArgs args = mixed_args(y, x, weight, bias, shape);
  if (kernels::int8_linear_unsupported(args) != nullptr) return false;
  ops::launch(args, y.device());
  return true;
}

// Several rows go to the kernel of few rows where it takes them, one always does.
void plain_into(const Tensor& y, const Tensor& x, const LinearOperand& weight, const Tensor& bias,
                KernelPolicy policy) {
  const bool by_kernel = x.is_cuda() && policy != KernelPolicy::reference;
  const bool several = y.scalar_type() != at::kFloat && x.is_contiguous();
  if (by_kernel && x.size(0) <= (several ? kernels::kMostLinearRows : 1)) {
    const Tensor rows = x.contiguous();
    const kernels::LinearRowArgs args = few_rows_args(y, {rows, {}}, weight, bias);
    if (args.rows == 1 || kernels::linear_row_unsupported(args) == nullptr)
      return ops::launch(args, y.device());
  }
  aten_product(y, x, weight.values, bias);
}

void int8_into(const Tensor& y, const Tensor& x, const LinearOperand& weight, const Tensor& bias,
               const Kernels& kernels) {
  const bool by_kernel = ops::takes_kernel(kOp, y, kernels);
  const TuningTable* tuning = by_kernel ? ops::tuning_for(y.scalar_type(), kernels) : nullptr;
  const Int8Product product =
      choose_int8_product(tuning, y.size(0), weight.values.size(0), weight.values.size(1));
  if (const std::optional<int> row_shape = row_kernel_shape(product)) {
    if (by_kernel) return kernel_of_few_rows(y, {x, {}}, weight, bias, *row_shape);
    return reference_product(y, {x, {}}, weight, bias);
  }
  const std::optional<int> shape = by_kernel ? mixed_shape(product) : std::nullopt;
  if (shape && mixed_into(y, x, weight, bias, *shape)) return;
  aten_product(y, x, dequantize(weight, y, by_kernel), bias);
}

void fp8_into(const Tensor& y, const LinearOperand& x, const LinearOperand& weight,
              const Tensor& bias, const Kernels& kernels) {
  const bool by_kernel = ops::takes_kernel(kOp, y, kernels);
  const bool quantizes = !x.scales.defined() && quantizes_rows(Quantization::fp8, y.size(0));
  const LinearOperand rows = quantizes ? quantize_rows(x.values, Quantization::fp8, kernels) : x;
  if (!by_kernel) return reference_product(y, rows, weight, bias);
  const Fp8Product product =
      choose_fp8_product(ops::tuning_for(y.scalar_type(), kernels), y.size(0),
                         weight.values.size(0), weight.values.size(1));
  if (const auto shape = row_kernel_shape(product))
    return kernel_of_few_rows(y, rows, weight, bias, *shape);
  fp8_product(y, rows, weight, bias, product == Fp8Product::cutlass);
}

LinearOperand rows_of(const LinearOperand& x, const RowSet& rows) {
  if (!x.scales.defined()) return {ops::take_rows(x.values, rows), {}};
  // ATen selects no rows of e4m3.
  const Tensor bytes = ops::take_rows(x.values.view(at::kByte), rows);
  return {bytes.view(x.values.scalar_type()), ops::take_rows(x.scales, rows)};
}

// Of sets without rows nothing is looked at.
kernels::RoutedLinearArgs routed_args(const Tensor& y, const LinearOperand& x,
                                      std::span<const LinearRoute> routes) {
  kernels::RoutedLinearArgs args;
  args.x = x.values.data_ptr();
  args.x_scales = x.scales.defined() ? x.scales.data_ptr<float>() : nullptr;
  args.x_stride = x.values.stride(0);
  args.y = y.data_ptr();
  args.y_stride = y.stride(0);
  args.rows = x.values.size(0);
  args.inputs = x.values.size(1);
  args.outputs = y.size(1);
  args.dtype = ops::kernel_dtype(y);
  args.stored = ops::stored_of(x.values);
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const LinearRoute& route = routes[i];
    if (route.rows.count == 0) continue;
    const LinearOperand& weight = route.weight;
    args.sets[i] = {weight.values.data_ptr(),
                    weight.scales.defined() ? weight.scales.data_ptr<float>() : nullptr,
                    route.bias.defined() ? route.bias.data_ptr() : nullptr,
                    ops::kernel_rows(route.rows)};
  }
  return args;
}

struct RoutedOperands {
  LinearOperand x;
  std::vector<LinearRoute> routes;
};

// Whether the kernel that reads and writes rows where they lie is the one for these, if it takes
// their sizes: rows are listed, none would be alone with the kernel of few rows, which makes no
// copy of a weight and does not round the row, and the kernel pays or is insisted on.
bool routes_by_kernel(const Tensor& y, const LinearOperand& x, std::span<const LinearRoute> routes,
                      const Kernels& kernels) {
  if (!y.is_cuda() || kernels.policy == KernelPolicy::reference || y.scalar_type() == at::kFloat ||
      y.size(0) != x.values.size(0)) {
    return false;
  }
  const std::int64_t at_once = ops::routed_linear_tiles(y.device());
  if (at_once == 0) return false;
  const TuningTable* const tuning = ops::tuning_for(y.scalar_type(), kernels);
  std::optional<at::ScalarType> stored;
  RoutedSizes sizes = {{}, x.values.size(1), y.size(1)};
  bool listed = false;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const LinearRoute& route = routes[i];
    const std::int64_t rows = sizes.rows_of_set[i] = route.rows.count;
    if (rows == 0) continue;
    const Tensor& weight = route.weight.values;
    if (weight.scalar_type() != stored.value_or(weight.scalar_type())) return false;
    stored = weight.scalar_type();
    if (stored == at::kFloat8_e4m3fn && !x.scales.defined() &&
        !quantizes_rows(Quantization::fp8, rows)) {
      return false;
    }
    if (stored == at::kChar) {
      const Int8Product product = choose_int8_product(tuning, rows, weight.size(0), weight.size(1));
      if (row_kernel_shape(product)) return false;
      const bool mixes = mixed_shape(product) && ops::has_int8_linear(y.device());
      sizes.copied_anyway = sizes.copied_anyway && !mixes;
    }
    listed = listed || route.rows.index.defined();
  }
  return listed &&
         (kernels.policy == KernelPolicy::strict || routed_kernel_pays(*stored, sizes, at_once));
}

// With rows of e4m3 where weights are, and copies of weights of int8.
RoutedOperands operands_of_kernel(const Tensor& y, const LinearOperand& x,
                                  std::span<const LinearRoute> routes, const Kernels& kernels) {
  RoutedOperands operands = {x, {routes.begin(), routes.end()}};
  for (LinearRoute& route : operands.routes) {
    if (route.rows.count == 0) continue;
    const at::ScalarType stored = route.weight.values.scalar_type();
    if (stored == at::kChar) route.weight = {dequantize(route.weight, y, true), {}};
    if (stored == at::kFloat8_e4m3fn && !operands.x.scales.defined())
      operands.x = quantize_rows(x.values, Quantization::fp8, kernels);
  }
  return operands;
}

// Listed rows are gathered before and scattered behind.
void routed_by_set(const Tensor& y, const LinearOperand& x, std::span<const LinearRoute> routes,
                   const Kernels& kernels) {
  for (const LinearRoute& route : routes) {
    const RowSet& rows = route.rows;
    if (rows.count == 0) continue;
    const LaunchLabel label(route.label);
    const LinearOperand part = rows_of(x, rows);
    if (!rows.index.defined()) {
      linear_into(y.narrow(0, rows.first, rows.count), part, route.weight, route.bias, kernels);
      continue;
    }
    const Tensor gathered = at::empty({rows.count, y.size(1)}, y.options());
    linear_into(gathered, part, route.weight, route.bias, kernels);
    ops::put_rows(y, rows, gathered);
  }
}

}  // namespace

bool routed_kernel_pays(at::ScalarType stored, const RoutedSizes& sizes, std::int64_t at_once) {
  constexpr std::int64_t kTile = kernels::kRoutedLinearTile;
  constexpr double kFull = 0.8, kFullE4m3 = 0.7;
  const auto parts = [](std::int64_t whole, std::int64_t part) {
    return (whole + part - 1) / part;
  };
  constexpr std::int64_t kManyRows = 4096;
  const auto [first, second] = sizes.rows_of_set;
  if (!sizes.copied_anyway && first + second < kManyRows) return false;
  const std::int64_t tiles =
      (parts(first, kTile) + parts(second, kTile)) * parts(sizes.outputs, kTile);
  const std::int64_t rounds = parts(tiles, at_once);
  const double filled = static_cast<double>((first + second) * sizes.outputs) /
                        static_cast<double>(rounds * at_once * kTile * kTile);
  if (stored == at::kFloat8_e4m3fn) return rounds == 1 || filled >= kFullE4m3;
  // Long sums the libraries' kernels share out among blocks.
  return sizes.inputs <= sizes.outputs && filled >= kFull;
}

bool has_mixed_kernel(at::Device device) {
  TORCH_CHECK(!device.is_cuda() || device.has_index(), "[", kOp, "] a device without its index");
  return device.is_cuda() && ops::has_int8_linear(device);
}

bool quantizes_rows(Quantization weight, std::int64_t rows) {
  return weight == Quantization::fp8 && rows > 1;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Kernels& kernels) {
  return linear(x, LinearOperand{weight, {}}, bias, kernels);
}

Tensor linear(const Tensor& x, const LinearOperand& weight, const Tensor& bias,
              const Kernels& kernels) {
  const Tensor y = at::empty({x.size(0), weight.values.size(0)}, x.options());
  linear_into(y, {x, {}}, weight, bias, kernels);
  return y;
}

void linear_into(Tensor y, const LinearOperand& x, const LinearOperand& weight, const Tensor& bias,
                 const Kernels& kernels) {
  check_arguments(y, x, weight, bias);
  if (x.values.size(0) == 0) return;
  if (!weight.scales.defined()) return plain_into(y, x.values, weight, bias, kernels);
  const bool fp8 = weight.values.scalar_type() == at::kFloat8_e4m3fn;
  fp8 ? fp8_into(y, x, weight, bias, kernels) : int8_into(y, x.values, weight, bias, kernels);
}

LinearOperand linear_gelu_into(Tensor y, LinearOperand x, const LinearOperand& weight,
                               const Tensor& bias, Gelu gelu, Quantization rows,
                               const Kernels& kernels) {
  const bool plain = !weight.scales.defined() && !x.scales.defined() && bias.defined() &&
                     rows == Quantization::none;
  if (plain && gelu == Gelu::tanh && y.is_cuda() && y.scalar_type() != at::kFloat &&
      y.size(0) > 1 && kernels.policy != KernelPolicy::reference) {
    check_arguments(y, x, weight, bias);
    at::_addmm_activation_out(y, bias, x.values, weight.values.t(), 1, 1, /*use_gelu=*/true);
    return {y, {}};
  }
  linear_into(y, x, weight, bias, kernels);
  x = {};
  return gelu_(std::move(y), gelu, rows, kernels);
}

bool routed_linear_into(Tensor y, const LinearOperand& x, std::span<const LinearRoute> routes,
                        const Kernels& kernels) {
  std::vector<RowSet> sets;
  for (const LinearRoute& route : routes) sets.push_back(route.rows);
  ops::check_row_sets(kOp, sets, x.values);
  TORCH_CHECK(y.is_contiguous(), "[", kOp, "] y has strides ", y.strides());
  if (!routes_by_kernel(y, x, routes, kernels)) {
    routed_by_set(y, x, routes, kernels);
    return false;
  }
  for (const LinearRoute& route : routes) {
    if (route.rows.count > 0) check_arguments(y, x, route.weight, route.bias);
  }
  const RoutedOperands operands = operands_of_kernel(y, x, routes, kernels);
  const kernels::RoutedLinearArgs args = routed_args(y, operands.x, operands.routes);
  if (kernels::routed_linear_unsupported(args) != nullptr) {
    routed_by_set(y, operands.x, operands.routes, kernels);
    return false;
  }
  ops::launch(args, y.device());
  return true;
}

}  // namespace diptych

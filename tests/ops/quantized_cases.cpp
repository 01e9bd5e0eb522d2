#include "tests/ops/quantized_cases.h"

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "kernels/linear_row/linear_row.h"
#include "kernels/quantize_attention/quantize_attention.h"
#include "kernels/quantize_rows/quantize_rows.h"
#include "lib/ops/quantize_attention.h"
#include "tests/kernels/closeness.h"
#include "tests/support/combinations.h"

namespace diptych::testing {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr Quantization kKinds[] = {Quantization::fp8, Quantization::int8};

const char* name_of(Quantization kind) {
  return kind == Quantization::fp8 ? "fp8" : "int8";
}

double limit_of(Quantization kind) {
  return kind == Quantization::fp8 ? 448 : 127;
}

LinearOperand by_kernel_reference(const Tensor& x, Quantization kind,
                                  kernels::Activation activation = kernels::Activation::none) {
  const LinearOperand rows = LinearOperand::empty(x.sizes(), x.options(), kind);
  kernels::QuantizeRowsArgs args;
  args.x = x.data_ptr();
  args.values = rows.values.data_ptr();
  args.scales = rows.scales.data_ptr<float>();
  args.rows = x.size(0);
  args.width = x.size(1);
  args.x_stride = x.stride(0);
  args.dtype = kernel_dtype(x.scalar_type());
  args.stored = kind == Quantization::fp8 ? kernels::Stored::e4m3 : kernels::Stored::i8;
  args.activation = activation;
  kernels::quantize_rows_ref(args);
  return rows;
}

void check_same_bits(const LinearOperand& found, const LinearOperand& expected,
                     const std::string& what) {
  CAPTURE(what);
  CHECK(at::equal(found.values.cpu().view(at::kByte), expected.values.cpu().view(at::kByte)));
  CHECK(at::equal(found.scales.cpu().view(at::kInt), expected.scales.cpu().view(at::kInt)));
}

// What is not a number does not become one, and stays in its row: `bad` among ones.
void check_not_a_number(Quantization kind, float bad, at::Device device, KernelPolicy policy) {
  const Tensor x = at::ones({20, 16});
  x[3][5] = bad;
  const LinearOperand found = quantize_rows(x.to(device), kind, policy);
  CHECK_FALSE(std::isfinite(found.scales[3].item<float>()));
  CHECK(std::isfinite(found.scales[2].item<float>()));
  // As a weight (its 4th output), few rows and many.
  for (const std::int64_t rows : {1, 20}) {
    const auto dtype = device.is_cuda() ? at::kBFloat16 : at::kFloat;
    const LinearOperand weight =
        quantize_rows(x.narrow(0, 0, 16).to(dtype).to(device), kind, policy);
    const Tensor y = linear(at::ones({rows, 16}, dtype).to(device), weight, {}, policy).cpu();
    const Tensor finite = y.isfinite().all(0);
    CHECK_FALSE(finite[3].item<bool>());
    CHECK(count(finite) == 15);
  }
}

}  // namespace

void check_quantized_by_hand(at::Device device, KernelPolicy policy) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kLeast = std::numeric_limits<float>::min();
  struct Row {
    std::vector<float> x;
    Quantization kind;
    float scale;
    std::vector<float> values;
  };
  const Row rows[] = {
      {{0, 0, -0.0F, 0}, Quantization::fp8, kLeast, {0, 0, 0, 0}},
      {{0, 0, -0.0F, 0}, Quantization::int8, kLeast, {0, 0, 0, 0}},
      // 17, 19 and 1.0625 are ties; 0.0009765625 = 2^-10 is half the smallest e4m3.
      {{448, 17, -19, 1.0625F}, Quantization::fp8, 1, {448, 16, -20, 1}},
      {{-448, 0.0009765625F, 0.0029296875F, 0.3F},
       Quantization::fp8,
       1,
       {-448, 0, 0.00390625F, 0.3125F}},
      {{896, 1, 2, 430}, Quantization::fp8, 2, {448, 0.5F, 1, 208}},
      {{127, 0.5F, 1.5F, -2.5F}, Quantization::int8, 1, {127, 0, 2, -2}},
      {{-254, 253, 3, -1.5F}, Quantization::int8, 2, {-127, 126, 2, -1}},
      // One huge value leaves nothing of the others.
      {{1e30F, 1, -1e20F, 0}, Quantization::fp8, 1e30F / 448, {448, 0, 0, 0}},
      {{1e30F, 1, -1e20F, 0}, Quantization::int8, 1e30F / 127, {127, 0, 0, 0}},
      {{1e-44F, 0, 0, 0}, Quantization::fp8, kLeast, {0, 0, 0, 0}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.x);
    const LinearOperand found =
        quantize_rows(at::tensor(row.x).unsqueeze(0).to(device), row.kind, policy);
    CHECK(found.scales.item<float>() == row.scale);
    CHECK(at::equal(found.values.cpu().to(at::kFloat), at::tensor(row.values).unsqueeze(0)));
  }
  test::for_each_combination(
      [&](Quantization kind, float bad) { check_not_a_number(kind, bad, device, policy); }, kKinds,
      std::array{kInf, -kInf, std::numeric_limits<float>::quiet_NaN()});
}

void check_quantize_rows(at::Device device, KernelPolicy policy) {
  constexpr std::int64_t kRows[] = {0, 1, 3, 17, 258, 1030};
  // 40000 is more than a block of the kernel holds in registers
  constexpr std::int64_t kWidths[] = {64, 130, 3584, 1, 40000};
  at::Generator generator = at::detail::createCPUGenerator(21);
  const auto check = [&](at::ScalarType dtype, std::int64_t rows, std::int64_t width,
                         Layout layout) {
    if (width == 40000 && rows > 1) return;
    if (rows * width > 50000 && layout != Layout::packed) return;
    const double scale = rows == 17 ? 1e3 : 1;
    const Tensor x = random_rows(generator, rows, width, scale, layout, dtype);
    // A copy loses its gaps: the device's rows are made anew in the same layout.
    const Tensor there = at::empty({rows, width + gap(layout)}, x.options().device(device))
                             .narrow(1, before(layout), width);
    there.copy_(x);
    for (const Quantization kind : kKinds) {
      check_same_bits(quantize_rows(there, kind, policy), by_kernel_reference(x, kind),
                      fmt::format("{} {} [{}, {}] layout {}", name_of(kind), c10::toString(dtype),
                                  rows, width, static_cast<int>(layout)));
    }
  };
  test::for_each_combination(check, kDtypes, kRows, kWidths, kLayouts);
}

namespace {

Tensor exact_gelu(const Tensor& x, Gelu gelu) {
  return at::gelu(x.cpu().to(at::kDouble), gelu == Gelu::tanh ? "tanh" : "none");
}

// Off by half a step of the dtype, and little more.
void check_plain_gelu(const Tensor& found, const Tensor& exact) {
  const double step = found.scalar_type() == at::kFloat      ? 4e-6
                      : found.scalar_type() == at::kBFloat16 ? 0x1p-7
                                                             : 0x1p-10;
  const Tensor off = (found.cpu().to(at::kDouble) - exact).abs();
  CHECK(count(off > exact.abs() * (0.51 * step) + 1e-6) == 0);
}

// A row's elements in e4m3 are off by a sixteenth, or by half of the smallest step.
void check_quantised_gelu(const LinearOperand& found, const Tensor& exact) {
  const Tensor scales = found.scales.cpu().to(at::kDouble).unsqueeze(1);
  const Tensor values = found.values.cpu().to(at::kFloat).to(at::kDouble) * scales;
  CHECK(count((values - exact).abs() > exact.abs() * 0.067 + scales * 0x1.1p-10) == 0);
}

void check_near_reference(const LinearOperand& found, const Tensor& x, Gelu gelu) {
  const LinearOperand expected = by_kernel_reference(
      x, Quantization::fp8,
      gelu == Gelu::tanh ? kernels::Activation::gelu_tanh : kernels::Activation::gelu);
  CHECK(at::allclose(found.scales.cpu(), expected.scales, 0x1p-8));
  // Compared as numbers: for gelu(-6) ATen gives 0 on one processor and -0 on another.
  const Tensor apart = found.values.cpu().to(at::kFloat).ne(expected.values.to(at::kFloat));
  CHECK(count(apart) <= apart.numel() / 50 + 2);
}

// Products whose sums are exact. Where the sum is rounded before it is activated, both roundings
// count, and the first by the slope of gelu, at most 1.13.
void check_gelu_of_product(const Tensor& x, const Tensor& weight, const Tensor& bias, Gelu gelu,
                           at::Device device, KernelPolicy policy) {
  const at::ScalarType dtype = x.scalar_type();
  const Tensor sums = at::linear(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble));
  const double half = dtype == at::kFloat ? 2e-6 : dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  for (const Quantization rows : {Quantization::none, Quantization::fp8}) {
    const LinearOperand found = linear_gelu_into(
        at::empty({x.size(0), weight.size(0)}, x.options().device(device)), {x.to(device), {}},
        {weight.to(device), {}}, bias.to(device), gelu, rows, policy);
    if (rows == Quantization::fp8) {
      check_quantised_gelu(found, exact_gelu(sums.to(dtype), gelu));
    } else {
      const Tensor off = (found.values.cpu().to(at::kDouble) - exact_gelu(sums, gelu)).abs();
      CHECK(count(off > sums.abs() * (2.2 * half) + 1e-6) == 0);
    }
  }
}

void check_gelu_of_products(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(23);
  const auto draw = [&](at::IntArrayRef shape) {
    return at::randint(-4, 5, shape, generator, at::kFloat) / 8;
  };
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t rows : {0, 1, 33}) {
      for (const Gelu gelu : {Gelu::tanh, Gelu::exact}) {
        CAPTURE(dtype);
        CAPTURE(rows);
        check_gelu_of_product(draw({rows, 64}).to(dtype), draw({48, 64}).to(dtype),
                              draw({48}).to(dtype), gelu, device, policy);
      }
    }
  }
}

}  // namespace

void check_gelu(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(22);
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t width : {64, 130, 8960}) {
      for (const Gelu gelu : {Gelu::exact, Gelu::tanh}) {
        CAPTURE(dtype);
        CAPTURE(width);
        Tensor x = at::randn({17, width}, generator) * 3;
        x[0].fill_(-60000), x[1].fill_(60000), x[2].zero_();
        x = x.to(dtype);
        const Tensor exact = exact_gelu(x, gelu);
        check_plain_gelu(
            gelu_(x.to(device, dtype, false, /*copy=*/true), gelu, Quantization::none, policy)
                .values,
            exact);
        const LinearOperand rows =
            gelu_(x.to(device, dtype, false, /*copy=*/true), gelu, Quantization::fp8, policy);
        check_quantised_gelu(rows, exact);
        check_near_reference(rows, x, gelu);
      }
    }
  }
  check_gelu_of_products(device, policy);
}

namespace {

struct AttentionOperands {
  Tensor q, keys, values, key_counts;
};

QuantizedAttention by_kernel_reference(const AttentionOperands& x, std::int64_t value_blocks) {
  const auto e4m3 = at::TensorOptions(at::kFloat8_e4m3fn);
  const QuantizedAttention out = {
      at::empty(x.q.sizes(), e4m3), at::empty(x.keys.sizes(), e4m3),
      at::empty({x.keys.size(0), x.keys.size(2), value_blocks, kernels::kValueBlockBytes}, e4m3),
      at::empty({kernels::kAttentionScales}, at::kFloat), at::empty({x.q.size(0)}, at::kFloat)};
  kernels::QuantizeAttentionArgs args;
  args.q = x.q.data_ptr();
  args.keys = x.keys.data_ptr();
  args.values = x.values.data_ptr();
  args.key_counts = x.key_counts.data_ptr<std::int32_t>();
  args.q_values = out.q.data_ptr();
  args.key_values = out.keys.data_ptr();
  args.value_values = out.values.data_ptr();
  args.scales = out.scales.data_ptr<float>();
  args.row_scales = out.row_scales.data_ptr<float>();
  args.rows = x.q.size(0);
  args.q_width = x.q.size(1) * x.q.size(2);
  args.samples = x.keys.size(0);
  args.capacity = x.keys.size(1);
  args.kv_width = x.keys.size(2) * x.keys.size(3);
  args.q_stride = x.q.stride(0);
  args.key_stride = x.keys.stride(0);
  args.value_stride = x.values.stride(0);
  args.key_row_stride = x.keys.stride(1);
  args.value_row_stride = x.values.stride(1);
  args.value_blocks = value_blocks;
  args.dtype = kernel_dtype(x.q.scalar_type());
  kernels::quantize_attention_ref(args);
  return out;
}

void check_same_bits(const QuantizedAttention& found, const QuantizedAttention& expected,
                     const std::string& what) {
  CAPTURE(what);
  const auto bytes = [](const Tensor& t) { return t.cpu().view(at::kByte); };
  CHECK(at::equal(bytes(found.q), bytes(expected.q)));
  CHECK(at::equal(bytes(found.keys), bytes(expected.keys)));
  CHECK(at::equal(bytes(found.values), bytes(expected.values)));
  CHECK(at::equal(found.scales.cpu(), expected.scales));
  CHECK(at::equal(found.row_scales.cpu(), expected.row_scales));
}

}  // namespace

void check_quantize_attention(at::Device device, KernelPolicy policy) {
  struct Size {
    std::int64_t queries, heads, kv_heads, capacity;
    std::vector<int> key_counts;
    double scale;  // of keys and values
  };
  constexpr std::int64_t kHeadDim = kernels::kValueBlockDims;
  // Two branches of 1024x1024, on a GPU with the released heads and all queries.
  const bool released = device.is_cuda();
  const Size sizes[] = {
      {released ? 8208 : 1026, released ? 28 : 2, released ? 4 : 1, 4224, {4170, 4130}, 1},
      {34, 28, 4, 40, {33, 17}, 1},
      {5, 4, 2, 9, {9, 1, 4}, 1e3},
      {3, 6, 2, 70, {61}, 1e-3},
      {600, 2, 2, 530, {530, 257}, 1},
      {2, 2, 1, 4, {3, 2}, 0},  // nothing but zeros
      {600, 2, 1, 9, {9, 0}, 1},
      {16, 28, 4, 1200, {1200, 700}, 1},
  };
  at::Generator generator = at::detail::createCPUGenerator(22);
  const auto check = [&](at::ScalarType dtype, const Size& size) {
    const auto make = [&](at::IntArrayRef shape, double scale) {
      return (at::randn(shape, generator, at::kFloat) * scale).to(dtype);
    };
    const auto samples = static_cast<std::int64_t>(size.key_counts.size());
    // As slices: of a fused qkv, and of caches with more rows, different for k and v.
    Tensor q = make({size.queries, size.heads + 2 * size.kv_heads, kHeadDim}, 1);
    q[0][0][0] = 300;  // over what the scale of normed heads covers
    Tensor keys = make({samples + 1, size.capacity + 3, size.kv_heads, kHeadDim}, size.scale);
    Tensor values = make({samples, size.capacity + 1, size.kv_heads, kHeadDim}, size.scale);
    for (std::int64_t i = 0; i < samples; ++i) {
      const std::int64_t used = size.key_counts[static_cast<std::size_t>(i)];
      keys[i].narrow(0, used, keys.size(1) - used).fill_(3e4);
      values[i]
          .narrow(0, used, values.size(1) - used)
          .fill_(std::numeric_limits<double>::quiet_NaN());
    }
    const Tensor key_counts = at::tensor(size.key_counts, at::kInt);
    const auto slices = [&](const AttentionOperands& whole) {
      return AttentionOperands{whole.q.narrow(1, 0, size.heads),
                               whole.keys.narrow(0, 0, samples).narrow(1, 0, size.capacity),
                               whole.values.narrow(1, 0, size.capacity), whole.key_counts};
    };
    const AttentionOperands here = slices({q, keys, values, key_counts});
    const AttentionOperands there =
        slices({q.to(device), keys.to(device), values.to(device), key_counts.to(device)});
    const QuantizedAttention made =
        quantize_attention(there.q, there.keys, there.values, there.key_counts, policy);
    check_same_bits(made, by_kernel_reference(here, made.values.size(2)),
                    fmt::format("{} {} x {}/{}", c10::toString(dtype), size.queries, size.heads,
                                size.kv_heads));
  };
  test::for_each_combination(check, kDtypes, sizes);
}

namespace {

struct Shape {
  std::int64_t inputs, outputs;
};

// qkv, o, gate and up, down of the released model.
std::vector<Shape> projections(std::int64_t shrink) {
  const std::int64_t hidden = 3584 / shrink, kv = 512 / shrink, inner = 18944 / shrink;
  return {{hidden, hidden + 2 * kv}, {hidden, hidden}, {hidden, 2 * inner}, {inner, hidden}};
}

Tensor draw(at::Generator& generator, at::IntArrayRef sizes, double scale,
            const at::TensorOptions& options) {
  return (at::randn(sizes, generator, at::kFloat) * scale)
      .to(c10::typeMetaToScalarType(options.dtype()))
      .to(options.device());
}

struct Product {
  Tensor x, weight, bias;  // on the device
  LinearOperand quantized;
};

Product make_product(at::Generator& generator, std::int64_t rows, const Shape& shape,
                     const at::TensorOptions& options, Quantization kind, KernelPolicy policy) {
  Product p;
  p.x = draw(generator, {rows, shape.inputs}, 1, options);
  p.weight = draw(generator, {shape.outputs, shape.inputs}, 1 / std::sqrt(shape.inputs), options);
  p.bias = draw(generator, {shape.outputs}, 1, options);
  p.quantized = quantize_rows(p.weight, kind, policy);
  return p;
}

// The most that quantising moves each element by: half a step, which is 2^-4 of an e4m3 but no less
// than 2^-10 scales, and half a scale of an int8.
Tensor quantization_error(const Tensor& x, Quantization kind) {  // float64 [rows, width]
  const Tensor size = x.to(at::kDouble).abs();
  const Tensor scale = size.amax(1, true) / limit_of(kind);
  const Tensor error = kind == Quantization::fp8
                           ? at::maximum(size * 0x1p-4, (scale * 0x1p-10).expand_as(size))
                           : (scale * 0.5).expand_as(size);
  return error * (1 + 1e-5);
}

double rounding_of(at::ScalarType dtype) {  // half a step of one
  return dtype == at::kFloat ? 0x1p-24 : dtype == at::kBFloat16 ? 0x1p-9 : 0x1p-12;
}

// y against float64: each element within the sum of what its factors may have moved by, and all of
// them within `relative` in the 2-norm.
void check_product(const Product& p, Quantization kind, const Tensor& y, double relative) {
  const Tensor x = p.x.to(at::kDouble), w = p.weight.to(at::kDouble);
  const Tensor exact = at::linear(x, w, p.bias.to(at::kDouble));
  const bool rounds_rows = kind == Quantization::fp8 && p.x.size(0) > 1;
  const bool in_e4m3 = rounds_rows && p.x.is_cuda() && p.x.size(0) > kernels::kMostLinearRows;
  const double rounding = rounding_of(p.x.scalar_type());
  Tensor w_error = quantization_error(p.weight, kind);
  if (kind == Quantization::int8) w_error += (w.abs() + w_error) * rounding;  // of the copy
  Tensor bound = at::linear(x.abs(), w_error);
  if (rounds_rows) bound += at::linear(quantization_error(p.x, kind), w.abs() + w_error);
  // Sums of float32, or of 14 bits on the GPU, and the result's own rounding.
  bound += at::linear(x.abs(), w.abs()) * (in_e4m3 ? 0x1p-9 : 1e-5) +
           (exact.abs() + bound) * 2 * rounding;
  const Tensor error = (y.to(at::kDouble) - exact).abs();
  CHECK((error <= bound).all().item<bool>());
  const Tensor sums = exact - p.bias.to(at::kDouble);
  const double found = (error.norm() / sums.norm()).item<double>();
  INFO("relative error " << found);
  CHECK(found < relative);
  CHECK(found > relative / 4);  // it is quantised
}

std::string describe(Quantization kind, at::ScalarType dtype, std::int64_t rows,
                     const Shape& shape) {
  return fmt::format("{} {} {} x {} -> {}", name_of(kind), c10::toString(dtype), rows, shape.inputs,
                     shape.outputs);
}

// fp8 products on CUDA have no kernel for float32, nor for other sizes than multiples of 16.
bool multiplies_in_e4m3(at::Device device, KernelPolicy policy, Quantization kind,
                        std::int64_t rows) {
  return device.is_cuda() && policy != KernelPolicy::reference && kind == Quantization::fp8 &&
         rows > kernels::kMostLinearRows;
}

}  // namespace

void check_quantized_linear(at::Device device, KernelPolicy policy, std::int64_t shrink) {
  at::Generator generator = at::detail::createCPUGenerator(22);
  const auto check = [&](at::ScalarType dtype, const Shape& shape, Quantization kind) {
    if (shrink == 1 && dtype == at::kFloat) return;
    const auto options = at::TensorOptions(dtype).device(device);
    Product p = make_product(generator, 1, shape, options, kind, policy);
    // Around what the kernel of few rows takes, cuBLAS's tiles, and one wave of them.
    for (const std::int64_t rows :
         {1, 2, 3, 4, 8, 9, 15, 16, 17, 127, 256, 512, 513, 1026, 2048, 8208}) {
      if (rows > 1026 && shrink > 1) continue;
      if (dtype == at::kFloat && multiplies_in_e4m3(device, policy, kind, rows)) continue;
      p.x = draw(generator, {rows, shape.inputs}, 1, options);
      const std::string what = describe(kind, dtype, rows, shape);
      CAPTURE(what);
      // e4m3's error is uniform within half a step, on average 2.6 % of the value: for one row
      // that of the weights, for more sqrt(2) times that. int8's is within half of
      // max / 127, and the largest of so many normal numbers is 3 to 4.5 times their size.
      const double relative = kind == Quantization::int8 ? 0.0115 : rows == 1 ? 0.032 : 0.042;
      const Tensor y = linear(p.x, p.quantized, p.bias, policy);
      check_product(p, kind, y, relative);
      CHECK(at::equal(y, linear(p.x, p.quantized, p.bias, policy)));
    }
  };
  test::for_each_combination(check, kDtypes, projections(shrink), kKinds);
}

namespace {

// As the CPU's reference has them, but for what the order of sums may do.
void check_like_reference(const Product& p, const LinearOperand& there, const Tensor& bias,
                          bool in_e4m3, KernelPolicy policy) {
  const at::ScalarType dtype = p.x.scalar_type();
  const at::Device device = there.values.device();
  const Tensor found =
      linear(p.x.to(device), there, bias.defined() ? bias.to(device) : bias, policy).cpu();
  const Tensor wanted = linear(p.x, p.quantized, bias, KernelPolicy::reference);
  REQUIRE((found.sizes() == wanted.sizes()));
  REQUIRE((found.scalar_type() == dtype));
  if (p.x.size(0) == 0) return;
  const double most = wanted.abs().max().item<double>();
  // The order of sums may flip a rounding, and cuBLAS rounds the parts of a sum that it
  // splits before it adds them; e4m3 products sum in 14 bits on the GPU.
  const double step = dtype == at::kFloat ? 2e-6 : 3 * rounding_of(dtype);
  const double allowed = in_e4m3 ? step + 0x1p-8 : step;
  CHECK((found.to(at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>() <=
        allowed * most);
  CHECK(most > (p.x.size(1) == 1 ? 0 : 0.05));
}

}  // namespace

void check_quantized_like_cpu(at::Device device, KernelPolicy policy) {
  // Sizes that no vector divides, where the products are not cuBLAS's.
  constexpr Shape kShapes[] = {{64, 96}, {160, 64}, {3584, 48}, {18944, 48}, {131, 33}, {1, 5}};
  constexpr std::int64_t kRows[] = {0, 1, 2, 3, 5, 8, 9, 40};
  at::Generator generator = at::detail::createCPUGenerator(23);
  const auto check = [&](at::ScalarType dtype, Quantization kind, const Shape& shape,
                         std::int64_t rows) {
    const bool narrow = dtype == at::kFloat || shape.inputs % 16 != 0;
    const bool in_e4m3 = multiplies_in_e4m3(device, policy, kind, rows);
    if (narrow && in_e4m3) return;
    const std::string what = describe(kind, dtype, rows, shape);
    CAPTURE(what);
    const Product p = make_product(generator, rows, shape, dtype, kind, KernelPolicy::reference);
    const LinearOperand there = {p.quantized.values.to(device), p.quantized.scales.to(device)};
    for (const Tensor& bias : {p.bias, Tensor()})
      check_like_reference(p, there, bias, in_e4m3, policy);
  };
  test::for_each_combination(check, kDtypes, kKinds, kShapes, kRows);
}

namespace {

void check_quantized_norms(const Tensor& x, const Tensor& delta, std::span<const NormRoute> routes,
                           KernelPolicy policy) {
  constexpr double kEps = 1e-6;
  check_same_bits(rms_norm(x, routes, kEps, Quantization::fp8, policy),
                  quantize_rows(rms_norm(x, routes, kEps, policy), Quantization::fp8, policy),
                  "rms_norm");
  Tensor plain_sum = x.clone(), sum = x.clone();
  const Tensor plain = add_rms_norm_(plain_sum, delta, routes, kEps, policy);
  check_same_bits(add_rms_norm_(sum, delta, routes, kEps, Quantization::fp8, policy),
                  quantize_rows(plain, Quantization::fp8, policy), "add_rms_norm_");
  CHECK(at::equal(sum.nan_to_num(), plain_sum.nan_to_num()));
}

}  // namespace

void check_rows_made_quantized(at::Device device, KernelPolicy policy) {
  constexpr std::int64_t kRows[] = {4, 17, 258}, kWidths[] = {64, 130, 3584};
  at::Generator generator = at::detail::createCPUGenerator(24);
  const auto check = [&](at::ScalarType dtype, std::int64_t rows, std::int64_t width) {
    const auto options = at::TensorOptions(dtype).device(device);
    const auto random = [&](at::IntArrayRef sizes) { return draw(generator, sizes, 1, options); };
    Tensor x = random({rows, width}), delta = random({rows, width}),
           gate_up = random({rows, width});
    for (Tensor& t : {std::ref(x), std::ref(delta), std::ref(gate_up)}) {
      t[1].zero_();
      t[2][5] = std::numeric_limits<double>::quiet_NaN();
    }
    const NormRoute routes[] = {{random({width}), RowSet::range(0, rows - 2)},
                                {random({width}), RowSet::range(rows - 2, 2)}};
    const std::string what = fmt::format("{} [{}, {}]", c10::toString(dtype), rows, width);
    CAPTURE(what);
    check_quantized_norms(x, delta, routes, policy);
    const LinearOperand gated = silu_mul(gate_up, Quantization::fp8, policy);
    check_same_bits(gated, quantize_rows(silu_mul(gate_up, policy), Quantization::fp8, policy),
                    "silu_mul");
    CHECK(gated.scales[1].item<float>() == std::numeric_limits<float>::min());
    CHECK_FALSE(std::isfinite(gated.scales[2].item<float>()));
    CHECK(std::isfinite(gated.scales[3].item<float>()));
  };
  test::for_each_combination(check, kDtypes, kRows, kWidths);
}

void check_product_of_quantized_rows(at::Device device, KernelPolicy policy) {
  constexpr std::int64_t kBefore = 3;  // where no wide vector is aligned
  at::Generator generator = at::detail::createCPUGenerator(25);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    // The last one's sums are long, its result narrow.
    for (const auto& [rows, shape] :
         {std::pair{37, Shape{224, 288}}, {5, {224, 288}}, {37, {4352, 288}}}) {
      if (dtype == at::kFloat && multiplies_in_e4m3(device, policy, Quantization::fp8, rows))
        continue;
      const Product p =
          make_product(generator, kBefore + rows, shape, at::TensorOptions(dtype).device(device),
                       Quantization::fp8, policy);
      const LinearOperand all = quantize_rows(p.x, Quantization::fp8, policy);
      const LinearOperand part = {all.values.narrow(0, kBefore, rows),
                                  all.scales.narrow(0, kBefore, rows)};
      for (const Tensor& bias : {p.bias, Tensor()}) {
        const Tensor y = at::full({kBefore + rows + 1, shape.outputs}, -77, p.x.options());
        linear_into(y.narrow(0, kBefore, rows), part, p.quantized, bias, policy);
        CHECK(at::equal(y.narrow(0, kBefore, rows),
                        linear(p.x.narrow(0, kBefore, rows), p.quantized, bias, policy)));
        CHECK((y.narrow(0, 0, kBefore) == -77).all().item<bool>());
        CHECK((y.narrow(0, kBefore + rows, 1) == -77).all().item<bool>());
      }
    }
  }
}

}  // namespace diptych::testing

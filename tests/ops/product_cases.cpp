#include "tests/ops/product_cases.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <doctest/doctest.h>

#include "kernels/conv3d/conv3d.h"
#include "kernels/linear_row/linear_row.h"
#include "lib/ops/conv3d.h"
#include "lib/ops/kernel_call.h"
#include "lib/ops/split_products.h"
#include "lib/tuning/table.h"
#include "tests/kernels/field.h"
#include "tests/ops/row_set.h"
#include "tests/support/combinations.h"

namespace diptych::testing {

namespace {

// Of values at unit scale.
void check_near(const Tensor& found, const Tensor& wanted, at::ScalarType dtype) {
  const Tensor wide = found.to(at::kDouble);
  const double cosine = ((wide * wanted).sum() / (wide.norm() * wanted.norm())).item<double>();
  CHECK(cosine >= 0.99999);
  const double most = dtype == at::kBFloat16 ? 3.2e-2 : 3.2e-2 / 8;  // of 3 bits less
  CHECK((wide - wanted).abs().max().item<double>() <= most);
}

// found = silu(gate) * up, where products [rows, 2 * inner] of float64 are gate and up. These,
// silu(gate) and the result are rounded; silu is nowhere steeper than 1.1. `sums`: what a gate or
// an up may be off by before.
void check_gated_values(const Tensor& found, const Tensor& products, double sums) {
  const std::int64_t inner = products.size(1) / 2;
  const Tensor gate = products.narrow(1, 0, inner), up = products.narrow(1, inner, inner);
  const Tensor wanted = at::silu(gate) * up;
  const at::ScalarType dtype = found.scalar_type();
  const double step = dtype == at::kFloat ? 1e-6 : dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  const Tensor allowed = (1.1 * (gate * up).abs() + 3 * wanted.abs()) * (1.02 * step) + sums;
  CHECK(((found.to(at::kDouble) - wanted).abs() > allowed).sum().item<std::int64_t>() == 0);
  if (found.size(0) > 16) CHECK(wanted.abs().max().item<double>() > 1);
}

struct Projection {
  std::int64_t outputs, inputs;
  bool biased, gated;
};

struct ProjectionWeights {
  LinearOperand weight;
  Tensor bias;
};

Tensor widened_product(const Tensor& x, const ProjectionWeights& w) {
  const Tensor y = at::mm(x.to(at::kDouble), w.weight.values.to(at::kDouble).t());
  return w.bias.defined() ? y.add_(w.bias.to(at::kDouble)) : y;
}

// A quarter of the rows in the second set, one in neither, in no order.
Routing interleaved(std::int64_t rows) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rows));
  const Tensor order = at::randperm(rows, generator, at::kLong);
  const std::int64_t left_out = rows < 3 ? 0 : 1,
                     second = rows < 3 ? 0 : std::max<std::int64_t>(1, rows / 4);
  return {"interleaved",
          rows,
          {{order.narrow(0, left_out, rows - second - left_out), true},
           {order.narrow(0, rows - second, second), true}}};
}

// Listed rows where both sets have more than the kernels of few rows take; with `strict`, as the
// sizes here need not pay.
bool takes_one_launch(const LinearOperand& x, at::ScalarType stored, const Routing& routing,
                      const Tensor& y, KernelPolicy policy) {
  if (!y.is_cuda() || policy != KernelPolicy::strict || y.scalar_type() == at::kFloat ||
      ops::routed_linear_tiles(y.device()) == 0) {
    return false;
  }
  std::int64_t few = 0;  // rows that would have another product
  if (stored == at::kChar) few = kernels::kMostLinearRows;
  if (stored == at::kFloat8_e4m3fn && !x.scales.defined()) few = 1;
  bool listed = false;
  for (const RoutedSet& set : routing.sets) {
    const std::int64_t rows = set.rows.numel();
    if (rows > 0 && rows <= few) return false;
    listed = listed || (rows > 0 && set.list);
  }
  return listed;
}

// Rows of a range; float16 goes by the usual choice alone.
bool gates_by_one(const Tensor& x, std::int64_t rows, GatedProduct choice, KernelPolicy policy) {
  const at::ScalarType dtype = x.scalar_type();
  return x.is_cuda() && policy != KernelPolicy::reference && dtype != at::kFloat && rows > 0 &&
         has_gated_kernel(x.device()) &&
         (dtype == at::kBFloat16 ? choice == GatedProduct::one_kernel : rows >= kFewestGatedRows);
}

void check_listed_products(const Tensor& x, std::span<const ProjectionWeights> weights,
                           KernelPolicy policy) {
  const Routing routing = interleaved(x.size(0));
  const Tensor y = at::full({x.size(0), weights[0].weight.values.size(0)}, kCanary, x.options());
  std::vector<LinearRoute> routes;
  for (std::size_t s = 0; s < weights.size(); ++s)
    routes.push_back({weights[s].weight, weights[s].bias, row_set(routing.sets[s], x.device())});
  CHECK(routed_linear_into(y, {x, {}}, routes, policy) ==
        takes_one_launch({x, {}}, x.scalar_type(), routing, y, policy));
  for (std::size_t s = 0; s < weights.size(); ++s) {
    const Tensor rows = routing.sets[s].rows.to(x.device());
    if (rows.numel() == 0) continue;
    const Tensor wanted = widened_product(x.index_select(0, rows), weights[s]);
    check_near(y.index_select(0, rows), wanted, x.scalar_type());
  }
  const Tensor routed = routing.routed().to(x.device());
  CHECK(at::equal(y.index_fill(0, routed, kCanary), at::full_like(y, kCanary)));
}

// By one kernel and by two in bfloat16, by the usual choice in float16; the last two rows by the
// second weight.
void check_gated_projection(const Tensor& x, std::span<const ProjectionWeights> weights,
                            KernelPolicy policy) {
  const std::int64_t rows = x.size(0), second = rows < 3 ? 0 : 2;
  const LinearOperand& weight = weights[0].weight;
  const std::vector<LinearRoute> routes = {
      {weight, {}, RowSet::range(0, rows - second)},
      {weights[1].weight, {}, RowSet::range(rows - second, second)}};
  const Tensor products =
      at::cat({widened_product(x.narrow(0, 0, rows - second), weights[0]),
               widened_product(x.narrow(0, rows - second, second), weights[1])});
  for (const GatedProduct choice : {GatedProduct::one_kernel, GatedProduct::two_kernels}) {
    if (choice == GatedProduct::two_kernels && x.scalar_type() == at::kHalf) continue;
    CAPTURE(static_cast<int>(choice));
    TuningTable table;
    table.add({TunedKernel::gated_linear,
               {weight.values.size(0) / 2, x.size(1), 0},
               1,
               rows,
               static_cast<int>(choice),
               {}});
    const Kernels kernels(policy, &table);
    const std::int64_t first = rows - second;
    CHECK(gates_in_one_kernel(x.options(), first, weight.values.size(0) / 2, x.size(1), kernels) ==
          gates_by_one(x, first, choice, policy));
    constexpr double kSums = 3e-4;
    check_gated_values(routed_gated_linear(x, routes, kernels), products, kSums);
  }
}

}  // namespace

void check_plain_products(at::Device device, KernelPolicy policy, std::int64_t shrink) {
  const std::int64_t hidden = 3584 / shrink, kv = 512 / shrink, inner = 18944 / shrink;
  // qkv, o, gate and up, down
  const Projection projections[] = {{hidden + 2 * kv, hidden, true, false},
                                    {hidden, hidden, false, false},
                                    {2 * inner, hidden, false, true},
                                    {hidden, inner, false, false}};
  at::Generator generator = at::detail::createCPUGenerator(31);
  const auto check = [&](at::ScalarType dtype, const Projection& p) {
    const auto options = at::TensorOptions(dtype).device(device);
    const auto draw = [&](at::IntArrayRef sizes, double scale) {
      return (at::randn(sizes, generator, at::kFloat) * scale).to(options);
    };
    CAPTURE(dtype);
    CAPTURE(p.outputs);
    CAPTURE(p.inputs);
    const double unit = 1 / std::sqrt(static_cast<double>(p.inputs));
    std::array<ProjectionWeights, kernels::kRowSets> weights;
    for (ProjectionWeights& w : weights) {
      w.weight = {draw({p.outputs, p.inputs}, unit), {}};
      if (p.biased) w.bias = draw({p.outputs}, 0.1);
    }
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{3}, std::int64_t{17},
                                    1026 / shrink, 2048 / shrink, 8208 / shrink}) {
      CAPTURE(rows);
      const Tensor x = draw({rows, p.inputs}, 1);
      check_near(linear(x, weights[0].weight, weights[0].bias, policy),
                 widened_product(x, weights[0]), dtype);
      check_listed_products(x, weights, policy);
      if (p.gated) check_gated_projection(x, weights, policy);
    }
  };
  test::for_each_combination(check, std::array{at::kBFloat16, at::kHalf}, projections);
}

namespace {

struct RoutedProduct {
  LinearOperand x;  // rows as they are, or quantised
  std::array<LinearRoute, kernels::kRowSets> routes;
};

// The rows of each set, gathered on the host, with its weight alone; elsewhere the canary.
Tensor product_by_set(const RoutedProduct& p, const Routing& routing, const Tensor& like,
                      KernelPolicy policy) {
  const Tensor y = at::full_like(like, kCanary);
  for (std::size_t s = 0; s < p.routes.size(); ++s) {
    const Tensor& rows = routing.sets[s].rows;
    if (rows.numel() == 0) continue;
    const auto gather = [&](const Tensor& t) {
      return t.defined() ? t.cpu().index_select(0, rows).to(t.device()) : t;
    };
    const Tensor bytes = gather(p.x.scales.defined() ? p.x.values.view(at::kByte) : p.x.values);
    const LinearOperand x = {bytes.view(p.x.values.scalar_type()), gather(p.x.scales)};
    const Tensor part = at::empty({rows.numel(), y.size(1)}, y.options());
    linear_into(part, x, p.routes[s].weight, p.routes[s].bias, policy);
    y.index_put_({rows.to(y.device())}, part);
  }
  return y;
}

void check_routed_product(const RoutedProduct& p, const Routing& routing, at::ScalarType dtype,
                          KernelPolicy policy) {
  CAPTURE(routing.name);
  CAPTURE(routing.rows);
  const std::int64_t outputs = p.routes[0].weight.values.size(0);
  const Tensor y = at::full({routing.rows, outputs}, kCanary,
                            at::TensorOptions(dtype).device(p.x.values.device()));
  const at::ScalarType stored = p.routes[0].weight.values.scalar_type();
  CHECK(routed_linear_into(y, p.x, p.routes, policy) ==
        takes_one_launch(p.x, stored, routing, y, policy));
  const Tensor wanted = product_by_set(p, routing, y, policy).to(at::kDouble);
  const Tensor found = y.to(at::kDouble);
  // Where rows begin may choose another kernel, with another order of sums, or one that needs no
  // rounded copy of weights of int8: neighbours of 16 bits, which at most are so far apart.
  const double step = dtype == at::kFloat ? 2e-6 : dtype == at::kBFloat16 ? 0x1p-7 : 0x1p-10;
  const bool in_e4m3 = stored == at::kFloat8_e4m3fn && y.is_cuda();  // sums of 14 bits
  const Tensor untouched = wanted == kCanary;
  const double most = at::where(untouched, 0.0, wanted).abs().max().item<double>();
  CHECK((found - wanted).abs().max().item<double>() <= (step + (in_e4m3 ? 0x1p-8 : 0)) * most);
  CHECK(at::equal(found == kCanary, untouched));
}

}  // namespace

void check_routed_products(at::Device device, KernelPolicy policy) {
  constexpr std::int64_t kInputs = 64, kOutputs = 96;
  constexpr std::int64_t kRows[] = {1, 3, 17, 258};
  constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
  constexpr Quantization kKinds[] = {Quantization::none, Quantization::fp8, Quantization::int8};
  at::Generator generator = at::detail::createCPUGenerator(33);
  const auto check = [&](at::ScalarType dtype, Quantization kind, bool biased, std::int64_t rows) {
    // fp8 products on CUDA are of half-precision rows.
    if (device.is_cuda() && kind == Quantization::fp8 && dtype == at::kFloat) return;
    CAPTURE(dtype);
    CAPTURE(static_cast<int>(kind));
    CAPTURE(biased);
    const auto draw = [&](at::IntArrayRef sizes, double scale) {
      return (at::randn(sizes, generator, at::kFloat) * scale).to(dtype).to(device);
    };
    const Tensor x = draw({rows, kInputs}, 1);
    RoutedProduct p;
    for (LinearRoute& route : p.routes) {
      route.weight = quantize_rows(draw({kOutputs, kInputs}, 0.125), kind, policy);
      if (biased) route.bias = draw({kOutputs}, 1);
    }
    for (const Routing& routing : routings(rows)) {
      for (std::size_t s = 0; s < p.routes.size(); ++s)
        p.routes[s].rows = row_set(routing.sets[s], device);
      p.x = {x, {}};
      check_routed_product(p, routing, dtype, policy);
      if (kind != Quantization::fp8) continue;
      p.x = quantize_rows(x, kind, policy);
      check_routed_product(p, routing, dtype, policy);
    }
  };
  test::for_each_combination(check, kDtypes, kKinds, std::array{false, true}, kRows);
}

void check_routed_choice() {
  constexpr std::int64_t kClusters = 66, kRows[] = {258, 1026, 2048, 8208};
  struct Case {
    at::ScalarType stored;
    std::int64_t inputs, outputs;
    std::array<bool, 4> pays;
  };
  // Measured: of 1026 rows of e4m3 q, k and v took 2 % less in one launch, gate and up 3 % more;
  // all else is chosen as it was faster, but where both were within 2 %.
  constexpr std::int64_t kHidden = 3584, kQkv = 4608, kInner = 18944;
  const Case cases[] = {
      {at::kBFloat16, kHidden, kQkv, {false, false, false, true}},
      {at::kBFloat16, kHidden, kHidden, {false, false, true, true}},
      {at::kBFloat16, kHidden, 2 * kInner, {false, false, true, true}},
      {at::kBFloat16, kInner, kHidden, {false, false, false, false}},
      {at::kFloat8_e4m3fn, kHidden, kQkv, {true, false, true, true}},
      {at::kFloat8_e4m3fn, kHidden, kHidden, {true, false, true, true}},
      {at::kFloat8_e4m3fn, kHidden, 2 * kInner, {false, true, true, true}},
      {at::kFloat8_e4m3fn, kInner, kHidden, {true, false, true, true}},
      {at::kChar, kHidden, kQkv, {false, false, false, true}},
      {at::kChar, kHidden, kHidden, {false, false, true, true}},
      {at::kChar, kHidden, 2 * kInner, {false, false, true, true}},
      {at::kChar, kInner, kHidden, {false, false, false, false}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.stored);
    CAPTURE(c.inputs);
    CAPTURE(c.outputs);
    for (std::size_t i = 0; i < c.pays.size(); ++i) {
      CAPTURE(kRows[i]);
      const std::int64_t second = kRows[i] / 4;
      RoutedSizes sizes = {{kRows[i] - second, second}, c.inputs, c.outputs};
      CHECK(routed_kernel_pays(c.stored, sizes, kClusters) == c.pays[i]);
      if (c.stored != at::kChar) continue;
      sizes.copied_anyway = false;
      CHECK(routed_kernel_pays(c.stored, sizes, kClusters) == (c.pays[i] && kRows[i] == 8208));
    }
  }
}

void check_gated_products(at::Device device, KernelPolicy policy) {
  constexpr std::int64_t kInputs = 192, kInner = 136;
  at::Generator generator = at::detail::createCPUGenerator(34);
  const auto draw = [&](at::IntArrayRef sizes, at::ScalarType dtype, double scale = 1) {
    return (at::randn(sizes, generator, at::kFloat) * scale).to(dtype).to(device);
  };
  const auto check = [&](at::ScalarType dtype, std::int64_t gen, std::int64_t und,
                         GatedProduct choice) {
    if (gen + und == 0) return;
    CAPTURE(dtype);
    CAPTURE(gen);
    CAPTURE(und);
    CAPTURE(static_cast<int>(choice));
    TuningTable table;
    table.add(
        {TunedKernel::gated_linear, {kInner, kInputs, 0}, 1, 4096, static_cast<int>(choice), {}});
    const Kernels kernels(policy, &table);
    const Tensor x = draw({gen + und, kInputs + 8}, dtype).narrow(1, 0, kInputs);
    std::array<LinearRoute, kernels::kRowSets> routes;
    for (LinearRoute& route : routes)
      route.weight = {draw({2 * kInner, kInputs}, dtype, 0.125), {}};
    routes[0].rows = RowSet::range(0, gen);
    routes[1].rows = RowSet::range(gen, und);
    CHECK(gates_in_one_kernel(x.options(), gen, kInner, kInputs, kernels) ==
          gates_by_one(x, gen, choice, policy));
    const Tensor found = routed_gated_linear(x, routes, kernels);
    REQUIRE((found.sizes() == at::IntArrayRef{gen + und, kInner}));
    std::vector<Tensor> parts;
    for (const LinearRoute& route : routes) {
      const Tensor rows = x.narrow(0, route.rows.first, route.rows.count);
      parts.push_back(at::mm(rows.to(at::kDouble), route.weight.values.to(at::kDouble).t()));
    }
    const Tensor products = at::cat(parts);
    const double sums = dtype == at::kFloat ? 1e-5 : 1e-4;
    check_gated_values(found, products, sums);
    CHECK(at::equal(found, routed_gated_linear(x, routes, kernels)));
    for (LinearRoute& route : routes) {  // listed, which two kernels take
      const std::int64_t first = route.rows.first, end = first + route.rows.count;
      route.rows =
          RowSet::list(at::arange(first, end, at::TensorOptions(at::kLong).device(device)));
    }
    check_gated_values(routed_gated_linear(x, routes, kernels), products, sums);
  };
  test::for_each_combination(check, std::array{at::kFloat, at::kBFloat16, at::kHalf},
                             std::array<std::int64_t, 4>{0, 1, 514, 1026},
                             std::array<std::int64_t, 4>{0, 2, 17, 700},
                             std::array{GatedProduct::one_kernel, GatedProduct::two_kernels});
}

namespace {

// What the kernel's reference makes of tensors on the CPU, with phases and a shortcut of twice the
// channels.
Tensor convolve_by_reference(const Tensor& x, const Conv3d& conv) {
  const std::int64_t out = conv.weight.size(1);
  const Tensor y = at::empty({2 * x.size(0), 2 * x.size(1), 2 * x.size(2), out}, x.options());
  kernels::Conv3dArgs args;
  args.x = x.data_ptr();
  args.weight = conv.weight.data_ptr();
  args.weight_stride = conv.weight.stride(1);
  args.bias = conv.bias.data_ptr();
  args.shortcut = conv.shortcut.data_ptr();
  args.y = y.data_ptr();
  args.frames = x.size(0);
  args.height = args.y_height = x.size(1);
  args.width = args.y_width = x.size(2);
  args.inputs = conv.weight.size(5);
  args.outputs = out;
  args.row_taps = args.column_taps = 2;
  args.top = args.left = 1;
  args.frame_phases = args.side_phases = args.shortcut_step = 2;
  args.shortcut_phases = conv.shortcut_phases;
  args.dtype = args.y_dtype = kernels::DType::f32;
  kernels::conv3d_ref(args);
  return y;
}

}  // namespace

void check_convolutions(at::Device device) {
  constexpr std::int64_t kIn = 64, kOut = 192, kPhases = 8;
  at::globalContext().setAllowTF32CuDNN(false);  // as the program does
  at::Generator generator = at::detail::createCPUGenerator(35);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    CAPTURE(dtype);
    const auto draw = [&](at::IntArrayRef sizes, double scale) {
      return (at::randn(sizes, generator, at::kFloat) * scale).to(dtype);
    };
    const Tensor x = draw({3, 5, 6, 2 * kIn}, 1), weight = draw({4, kOut, 1, 2, 2, kIn}, 1.0 / 16);
    const Tensor bias = draw({kOut}, 1), shortcut = draw({3, 5, 6, 2 * kOut}, 1);
    const auto call_on = [&](at::Device on, at::ScalarType as) {
      return Conv3d{.weight = weight.to(on, as),
                    .bias = bias.to(on, as),
                    .row_padding = 1,
                    .column_padding = 1,
                    .frame_phases = 2,
                    .side_phases = 2,
                    .shortcut = shortcut.to(on, as),
                    .shortcut_phases = kPhases};
    };
    const Tensor expected = convolve_by_reference(x.to(at::kFloat), call_on(at::kCPU, at::kFloat));
    const Tensor found = conv3d(x.to(device), call_on(device, dtype));
    CHECK((found.scalar_type() == dtype));
    CHECK(found.sizes() == at::IntArrayRef({6, 10, 12, kOut}));
    const Tensor apart = found.to(at::kCPU, at::kFloat) - expected;
    const double limit = dtype == at::kFloat ? 1e-5 : dtype == at::kBFloat16 ? 4e-3 : 5e-4;
    CHECK((apart.norm() / expected.norm()).item<double>() < limit);
    Conv3d mixed = call_on(device, dtype);  // the same in float32, where that is possible
    mixed.dtype = at::kFloat;
    mixed.shortcut = mixed.shortcut.to(at::kFloat);
    if (dtype == at::kBFloat16) {
      CHECK_THROWS_AS(conv3d(x.to(device), mixed), c10::Error);
    } else {
      const Tensor wide = conv3d(x.to(device), mixed);
      CHECK((wide.scalar_type() == at::kFloat));
      CHECK(at::equal(wide.to(dtype), found));
      CHECK((dtype == at::kFloat || !at::equal(wide, found.to(at::kFloat))));
    }
    const Tensor narrow = at::empty({3, 5, 6, 2 * kIn + 2}, x.options()).narrow(3, 0, 2 * kIn);
    CHECK_THROWS_AS(conv3d(narrow, call_on(at::kCPU, dtype)), c10::Error);
    Conv3d fewer = call_on(at::kCPU, dtype);
    fewer.weight = fewer.weight.narrow(1, 0, kOut / 2);
    CHECK_THROWS_AS(conv3d(x, fewer), c10::Error);
  }
}

void check_convolution_of_pairs(at::Device device) {
  constexpr std::int64_t kIn = 64, kOut = 96, kFrames = 4;
  at::globalContext().setAllowTF32CuDNN(false);  // as the program does
  at::Generator generator = at::detail::createCPUGenerator(37);
  const auto draw = [&](at::IntArrayRef sizes, double scale) {
    return at::randn(sizes, generator, at::kFloat) * scale;
  };
  const Tensor clip = draw({2 + kFrames, 5, 6, kIn}, 1),
               taps = draw({kOut, kIn, 3, 3, 3}, 1.0 / 40);
  const Tensor bias = draw({kOut}, 1), shortcut = draw({kFrames, 5, 6, kOut}, 1);
  const auto call = [&](at::ScalarType dtype, const Tensor& weight, bool pairs) {
    return Conv3d{
        .weight = weight.permute({0, 2, 3, 4, 1}).unsqueeze(0).contiguous().to(device, dtype),
        .bias = bias.to(device, dtype),
        .row_padding = 1,
        .column_padding = 1,
        .pairs = pairs,
        .shortcut = shortcut.to(device, dtype)};
  };
  const Tensor expected = conv3d(clip.to(device), call(at::kFloat, taps, false)).to(at::kCPU);
  const auto d = [&](std::int64_t i) { return clip.slice(0, i, i + kFrames - 1, 2); };
  const Tensor maps = at::cat({d(1) + d(2), d(2) - d(1), d(0) - d(2), d(3) - d(1)});
  const Tensor weight = conv3d_pair_weight(taps);
  CHECK(at::equal(weight.narrow(2, 2, 3), taps));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    CAPTURE(dtype);
    const Tensor x = maps.to(device, dtype);
    const Tensor found = conv3d(x, call(dtype, weight, true));
    CHECK(found.sizes() == expected.sizes());
    const Tensor apart = found.to(at::kCPU, at::kFloat) - expected;
    const double limit = dtype == at::kFloat ? 1e-5 : dtype == at::kBFloat16 ? 5e-3 : 6e-4;
    CHECK((apart.norm() / expected.norm()).item<double>() < limit);
    CHECK_THROWS_AS(conv3d(x, call(dtype, taps, true)), c10::Error);
    CHECK_THROWS_AS(conv3d(x.narrow(0, 0, 6), call(dtype, weight, true)), c10::Error);
  }
}

void check_split_products(at::Device device) {
  at::Generator generator = at::detail::createCPUGenerator(36);
  const auto draw = [&](at::IntArrayRef sizes, double scale) {
    return (at::randn(sizes, generator, at::kFloat) * scale).to(device);
  };
  const auto apart = [](const Tensor& found, const Tensor& expected) {
    return ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  };
  const Tensor x = draw({2, 3, 5, 96}, 20), weight = draw({40, 96}, 0.1), bias = draw({40}, 1);
  const Tensor y = linear_in_parts(x, weight, bias, at::kHalf);
  CHECK((y.scalar_type() == at::kFloat));
  CHECK(apart(y, at::linear(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble))) <
        2e-6);

  const std::int64_t rows = 50, channels = 96;
  for (const at::ScalarType part : {at::kHalf, at::kBFloat16}) {
    CAPTURE(part);
    // In bfloat16 q, k and v are what they are, and only the shares are rounded.
    Tensor qkv = draw({2, rows, 3 * channels}, 2);
    if (part == at::kBFloat16) qkv = qkv.to(part);
    const std::vector<Tensor> all = qkv.to(at::kDouble).split(channels, 2);
    const Tensor scores = at::bmm(all[0], all[1].transpose(1, 2)) / std::sqrt(channels);
    const Tensor expected = at::bmm(at::softmax(scores, -1), all[2]);
    const double limit = part == at::kHalf ? 4e-6 : 4e-3;
    const Tensor whole = attend_in_parts(qkv, part);
    CHECK((whole.scalar_type() == at::kFloat));
    CHECK(apart(whole, expected) < limit);
    CHECK(apart(attend_in_parts(qkv, part, 2 * rows * 7), expected) < limit);  // 7 rows, then 1
    CHECK(apart(attend_in_parts(qkv, part, 1), expected) < limit);
  }
}

}  // namespace diptych::testing

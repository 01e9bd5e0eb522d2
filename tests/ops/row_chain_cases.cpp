#include "tests/ops/row_chain_cases.h"

#include <cmath>

#include <fmt/format.h>

#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm_rope/rms_norm_rope.h"
#include "lib/ops/layer_norm.h"
#include "lib/ops/rms_norm_rope.h"
#include "tests/kernels/closeness.h"

namespace diptych::testing {
namespace {

constexpr double kEps = 1e-6;
constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

struct Rows {
  std::int64_t rows, width;
  Layout layout = Layout::packed;
  std::int64_t groups = 1;  // of the tables; more than one: each row has its own
};
// Widths of a warp, of a block, that allow no vectors, and beyond what a block holds.
constexpr Rows kRows[] = {{0, 64},
                          {1, 64},
                          {17, 64, Layout::spaced, 3},
                          {3, 130, Layout::crooked},
                          {258, 1536, Layout::packed, 2},
                          {5, 5120, Layout::crooked, 2},
                          {9, 5120, Layout::spaced},
                          {2, 1},
                          {1, 40000, Layout::packed, 2}};

template <typename Body>
void for_rows(const Body& body) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const Rows& rows : kRows) {
      const std::string what =
          fmt::format("{} [{}, {}] layout {} in {} groups", c10::toString(dtype), rows.rows,
                      rows.width, static_cast<int>(rows.layout), rows.groups);
      CAPTURE(what);
      body(dtype, rows);
    }
  }
}

// The tensors of a call, on the CPU and on a device.
struct Chain {
  Tensor x, delta, gate, factor, offset, groups;

  static Chain random(at::Generator& generator, const Rows& rows, at::ScalarType dtype) {
    const at::TensorOptions values(dtype), tables(at::kFloat);
    const auto table = [&](double scale) {  // with a gap between its rows
      return random_rows(generator, rows.groups, rows.width, scale, rows.layout, tables);
    };
    Chain chain;
    chain.x = random_rows(generator, rows.rows, rows.width, 2, Layout::packed, values);
    chain.x.add_(0.5);
    chain.delta = random_rows(generator, rows.rows, rows.width, 2, rows.layout, values);
    chain.gate = table(1);
    chain.factor = table(1);
    chain.offset = table(1);
    if (rows.groups > 1) chain.groups = at::randint(rows.groups, {rows.rows}, generator, at::kLong);
    return chain;
  }
  Chain on(at::Device device) const {
    const auto moved = [&](const Tensor& t) { return t.defined() ? t.to(device) : t; };
    return {moved(x).clone(), moved(delta),  moved(gate),
            moved(factor),    moved(offset), moved(groups)};
  }
  NormTerms terms(bool beside_one) const { return {factor, offset, beside_one, groups}; }
  GatedSum sum(bool gated) const { return {delta, gated ? gate : Tensor(), groups}; }
};

struct Choice {
  bool sum = false, gated = false, norm = true, beside_one = true;
};

struct Expected {
  Tensor sum, y;
};

Expected reference(const Chain& chain, const Choice& choice) {
  Expected out{at::empty_like(chain.x), at::empty_like(chain.x)};
  const auto table = [](const Tensor& t) {
    return kernels::LayerNormArgs::Table{t.data_ptr<float>(), t.stride(0)};
  };
  kernels::LayerNormArgs args;
  args.x = chain.x.data_ptr();
  args.rows = chain.x.size(0);
  args.width = chain.x.size(1);
  args.x_stride = args.sum_stride = args.y_stride = args.width;
  args.dtype = kernel_dtype(chain.x.scalar_type());
  args.eps = static_cast<float>(kEps);
  args.groups.of_row = args.gate_groups.of_row =
      chain.groups.defined() ? chain.groups.data_ptr<std::int64_t>() : nullptr;
  args.groups.count = args.gate_groups.count = chain.factor.size(0);
  args.factor = table(chain.factor);
  args.offset = table(chain.offset);
  args.base = choice.beside_one ? 1.0F : 0.0F;
  if (choice.norm) args.y = out.y.data_ptr();
  if (choice.sum) {
    args.delta = chain.delta.data_ptr();
    args.delta_stride = chain.delta.stride(0);
    args.sum = out.sum.data_ptr();
    if (choice.gated) args.gate = table(chain.gate);
  }
  kernels::layer_norm_ref(args);
  return out;
}

// The value before the last rounding differs by about 1e-6 of the terms that make it up; a rounding
// to 16 bits then falls to the other side for few. `sizes`: of what was rounded, if not of the
// values themselves.
void check_near(const Tensor& found, const Tensor& expected, double terms,
                const Tensor& sizes = {}) {
  REQUIRE((found.sizes() == expected.sizes()));
  REQUIRE((found.scalar_type() == expected.scalar_type()));
  const at::ScalarType dtype = expected.scalar_type();
  const double ulp = dtype == at::kFloat ? 0 : dtype == at::kBFloat16 ? 0x1p-7 : 0x1p-10;
  const Tensor a = found.cpu().to(at::kFloat), e = expected.to(at::kFloat);
  const Tensor apart = (a - e).abs();
  const Tensor size = sizes.defined() ? sizes : e.abs();
  CHECK(count(apart > size * ulp + 4e-6 * terms) == 0);
  if (ulp > 0) CHECK(count(apart > 4e-6 * terms) <= e.numel() / 200 + 4);
  if (e.numel() > 16) CHECK(e.abs().max().item<float>() > 0.05F);
}

// Factors, offsets and normed values go up to about this in the cases above.
constexpr double kMostTerm = 30;

}  // namespace

void check_layer_norm(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(41);
  for_rows([&](at::ScalarType dtype, const Rows& rows) {
    const Chain chain = Chain::random(generator, rows, dtype), here = chain.on(device);
    for (const bool beside_one : {false, true}) {
      const Tensor y =
          layer_norm(here.x, here.terms(beside_one), kEps, Quantization::none, policy).values;
      check_near(y, reference(chain, {.beside_one = beside_one}).y, kMostTerm);
      CHECK(here.x.cpu().equal(chain.x));
    }
  });
}

void check_add_layer_norm(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(42);
  for_rows([&](at::ScalarType dtype, const Rows& rows) {
    const Chain chain = Chain::random(generator, rows, dtype);
    for (const bool gated : {false, true}) {
      const Expected expected = reference(chain, {.sum = true, .gated = gated});
      Chain here = chain.on(device);
      const Tensor y = add_layer_norm_(here.x, here.sum(gated), here.terms(true), kEps,
                                       Quantization::none, policy)
                           .values;
      check_close(here.x, expected.sum, 1, "sum");
      check_near(y, expected.y, kMostTerm);
      Chain alone = chain.on(device);
      add_gated_(alone.x, alone.sum(gated), policy);
      CHECK(alone.x.equal(here.x));
      CHECK(
          layer_norm(alone.x, here.terms(true), kEps, Quantization::none, policy).values.equal(y));
    }
  });
}

void check_layer_norm_rows_quantized(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(43);
  for_rows([&](at::ScalarType dtype, const Rows& rows) {
    const Chain chain = Chain::random(generator, rows, dtype);
    Chain plain = chain.on(device), quantized = chain.on(device);
    const auto run = [&](Chain& on, Quantization format) {
      return add_layer_norm_(on.x, on.sum(true), on.terms(true), kEps, format, policy);
    };
    const LinearOperand expected =
        quantize_rows(run(plain, Quantization::none).values, Quantization::fp8, policy);
    const LinearOperand found = run(quantized, Quantization::fp8);
    CHECK(found.scales.equal(expected.scales));
    CHECK(found.values.view(at::kByte).equal(expected.values.view(at::kByte)));
  });
}

void check_layer_norm_arguments() {
  const auto policy = KernelPolicy::reference;
  Tensor x = at::ones({3, 8});
  const Tensor table = at::ones({2, 8}), groups = at::zeros({3}, at::kLong);
  const auto norm = [&](const NormTerms& terms, Quantization rows = Quantization::none) {
    return layer_norm(x, terms, kEps, rows, policy);
  };
  norm({table, table, false, groups});
  CHECK_THROWS_AS(norm({table, at::ones({1, 8})}), c10::Error);
  CHECK_THROWS_AS(norm({at::ones({2, 7}), table}), c10::Error);
  CHECK_THROWS_AS(norm({table.to(at::kHalf), table}), c10::Error);
  CHECK_THROWS_AS(norm({table, {}}), c10::Error);
  CHECK_THROWS_AS(norm({table, table, false, at::zeros({2}, at::kLong)}), c10::Error);
  CHECK_THROWS_AS(norm({table, table, false, at::full({3}, 2, at::kLong)}), c10::Error);
  CHECK_THROWS_AS(norm({table, table}, Quantization::int8), c10::Error);
  CHECK_THROWS_AS(add_gated_(x, {at::ones({3, 7})}, policy), c10::Error);
  CHECK_THROWS_AS(add_gated_(x, {at::ones({3, 8}), at::ones({8})}, policy), c10::Error);
  Tensor spaced = at::ones({3, 16}).narrow(1, 0, 8);
  CHECK_THROWS_AS(add_gated_(spaced, {at::ones({3, 8})}, policy), c10::Error);
}

namespace {

struct Heads {
  std::int64_t rows, heads, head_dim, positions;
  int parts = 2;
  Layout layout = Layout::packed;
};
// The released widths; a head that vectors straddle; starts that allow none; a last repetition of
// the positions that is not whole; beyond what a block holds.
constexpr Heads kHeads[] = {{0, 2, 16, 4},
                            {7, 2, 12, 7},
                            {36, 2, 12, 18, 2, Layout::crooked},
                            {20, 3, 128, 8, 1, Layout::spaced},
                            {10, 12, 128, 5, 2},
                            {6, 40, 128, 3, 2, Layout::spaced},
                            {5, 40, 128, 5, 1, Layout::crooked},
                            {2, 320, 128, 2, 2}};

Tensor rope_reference(const Tensor& x, const RmsNormRope& from, std::int64_t width) {
  const Tensor changed = x.clone();  // rows keep no gaps
  kernels::RmsNormRopeArgs args;
  args.x = changed.data_ptr();
  args.x_stride = changed.stride(0);
  args.rows = changed.size(0);
  args.width = width;
  args.parts = static_cast<int>(from.weights.size());
  std::vector<Tensor> weights;
  for (const Tensor& weight : from.weights) weights.push_back(weight.cpu());
  for (std::size_t i = 0; i < weights.size(); ++i) args.weights[i] = weights[i].data_ptr();
  const Tensor cos = from.cos.defined() ? from.cos.cpu() : Tensor(),
               sin = from.sin.defined() ? from.sin.cpu() : Tensor();
  if (cos.defined()) {
    args.cos = cos.data_ptr<float>();
    args.sin = sin.data_ptr<float>();
    args.positions = cos.size(0);
    args.head_dim = 2 * cos.size(1);
  }
  args.eps = static_cast<float>(kEps);
  args.dtype = kernel_dtype(changed.scalar_type());
  kernels::rms_norm_rope_ref(args);
  return changed;
}

}  // namespace

void check_rms_norm_rope(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(44);
  for (const at::ScalarType dtype : kDtypes) {
    for (const Heads& heads : kHeads) {
      const std::string what =
          fmt::format("{} {} x {} of {}, layout {}", c10::toString(dtype), heads.rows, heads.heads,
                      heads.head_dim, static_cast<int>(heads.layout));
      CAPTURE(what);
      const auto options = at::TensorOptions(dtype).device(device);
      const std::int64_t width = heads.heads * heads.head_dim, columns = heads.parts * width + 32;
      RmsNormRope args;
      args.eps = kEps;
      for (int part = 0; part < heads.parts; ++part) {
        args.weights.push_back(
            random_rows(generator, 1, width, 1, Layout::packed, options)[0].contiguous());
      }
      const Tensor angles = at::randn({heads.positions, heads.head_dim / 2}, generator) * 3;
      for (const bool rotates : {false, true}) {
        if (rotates) {
          args.cos = angles.cos().to(device);
          args.sin = angles.sin().to(device);
        }
        args.x = random_rows(generator, heads.rows, columns, 3, heads.layout, options);
        const Tensor before = args.x.cpu().clone(at::MemoryFormat::Contiguous);  // x changes
        rms_norm_rope_(args, policy);
        const Tensor expected = rope_reference(before, args, width), found = args.x.cpu();
        CHECK(found.narrow(1, heads.parts * width, 32)
                  .equal(before.narrow(1, heads.parts * width, 32)));
        // A rounding of what is rotated is passed on to both of a pair, whose products may cancel:
        // these are held to twice the pair's length.
        const Tensor pairs = expected.to(at::kFloat).unflatten(1, {columns / 2, 2});
        const Tensor length = at::hypot(pairs.select(2, 0), pairs.select(2, 1));
        check_near(found.contiguous(), expected, 20,
                   rotates ? length.repeat_interleave(2, 1) * 2 : Tensor());
      }
    }
  }
}

void check_rms_norm_rope_arguments() {
  const auto check = [](RmsNormRope args) { rms_norm_rope_(args, KernelPolicy::reference); };
  const Tensor x = at::ones({3, 24}), weight = at::ones({12}), table = at::ones({3, 3});
  check({.x = x, .weights = {weight, weight}, .cos = table, .sin = table});
  CHECK_THROWS_AS(check({.x = x, .weights = {}}), c10::Error);
  CHECK_THROWS_AS(check({.x = x, .weights = {weight, weight, weight}}), c10::Error);
  CHECK_THROWS_AS(check({.x = x, .weights = {weight, at::ones({11})}}), c10::Error);
  CHECK_THROWS_AS(check({.x = x.narrow(1, 0, 20), .weights = {weight, weight}}), c10::Error);
  CHECK_THROWS_AS(check({.x = x, .weights = {weight}, .cos = table}), c10::Error);
  CHECK_THROWS_AS(check({.x = x, .weights = {weight}, .sin = table}), c10::Error);
  CHECK_THROWS_AS(check({.x = x, .weights = {weight}, .cos = at::ones({3, 5}), .sin = table}),
                  c10::Error);
}

void check_axial_rope_table() {
  // 128 channels: 44 for frames, 42 for rows and columns each.
  const auto [cos, sin] = axial_rope_table({3, 5, 7, 128});
  REQUIRE((cos.sizes() == at::IntArrayRef({105, 64})));
  const auto at = [&](std::int64_t t, std::int64_t y, std::int64_t x) {
    return (t * 5 + y) * 7 + x;
  };
  const auto check = [&](std::int64_t row, std::int64_t column, double angle) {
    CHECK(cos[row][column].item<double>() == doctest::Approx(std::cos(angle)).epsilon(1e-7));
    CHECK(sin[row][column].item<double>() == doctest::Approx(std::sin(angle)).epsilon(1e-7));
  };
  check(at(2, 4, 6), 0, 2);
  check(at(2, 4, 6), 21, 2 * std::pow(10000, -42.0 / 44));
  check(at(2, 4, 6), 22, 4);
  check(at(2, 4, 6), 42, 4 * std::pow(10000, -40.0 / 42));
  check(at(2, 4, 6), 43, 6);
  check(at(2, 4, 6), 63, 6 * std::pow(10000, -40.0 / 42));
  check(at(0, 1, 0), 22, 1);
  check(at(0, 0, 3), 44, 3 * std::pow(10000, -2.0 / 42));
  CHECK_THROWS_AS(axial_rope_table({0, 5, 7, 128}), c10::Error);
  CHECK_THROWS_AS(axial_rope_table({1, 5, 7, 127}), c10::Error);
}

}  // namespace diptych::testing

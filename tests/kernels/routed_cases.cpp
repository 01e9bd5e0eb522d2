#include "tests/kernels/routed_cases.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/kernels/field.h"
#include "tests/kernels/rope_cache.h"
#include "tests/kernels/routings.h"

namespace diptych::testing {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};
constexpr float kEps = 1e-6F;

std::string describe(at::ScalarType dtype, const Routing& routing, std::int64_t width,
                     Layout layout) {
  return fmt::format("{} [{}, {}] layout {}: {}", c10::toString(dtype), routing.rows, width,
                     static_cast<int>(layout), routing.name);
}

// The references agree to the bit, a kernel to its roundings.
int ulps(at::Device device) {
  return device.is_cpu() ? 0 : 2;
}

// A value of the call, where the reference and where what is under test reads it.
struct Both {
  Tensor host, there;
  Both(Tensor value, at::Device device) : host(std::move(value)), there(host.to(device)) {}
};

// Listed rows on the device, for as long as a call runs.
struct Lists {
  Tensor index[kernels::kRowSets];
  Lists(const Routing& routing, at::Device device) {
    for (int i = 0; i < kernels::kRowSets; ++i) index[i] = routing.sets[i].rows.to(device);
  }
};

// --- rms_norm -------------------------------------------------------------------------------

struct NormCall {
  Both x, delta, weights[kernels::kRowSets];
  kernels::RmsNormArgs args(bool add, bool there) const {
    const auto of = [there](const Both& value) { return there ? value.there : value.host; };
    kernels::RmsNormArgs args;
    args.x = of(x).data_ptr();
    args.x_stride = of(x).stride(0);
    args.rows = x.host.size(0);
    args.width = x.host.size(1);
    if (add) {
      args.delta = of(delta).data_ptr();
      args.delta_stride = of(delta).stride(0);
    }
    for (int i = 0; i < kernels::kRowSets; ++i) args.sets[i].weight = of(weights[i]).data_ptr();
    args.eps = kEps;
    args.dtype = kernel_dtype(x.host.scalar_type());
    return args;
  }
};

NormCall make_norm(at::Generator& generator, std::int64_t rows, std::int64_t width, Layout layout,
                   at::ScalarType dtype, at::Device device) {
  const auto draw = [&](std::int64_t count, Layout how) {
    return Both(random_rows(generator, count, width, 2, how, at::TensorOptions(dtype)), device);
  };
  return {
      draw(rows, layout), draw(rows, layout), {draw(1, Layout::packed), draw(1, Layout::packed)}};
}

void set_outputs(kernels::RmsNormArgs& args, const Tensor& y, const Tensor& sum) {
  args.y = y.data_ptr();
  args.y_stride = y.stride(0);
  if (args.delta == nullptr) return;
  args.sum = sum.data_ptr();
  args.sum_stride = sum.stride(0);
}

void set_rows(kernels::RmsNormArgs& args, const Routing& routing, const Lists& lists) {
  for (int i = 0; i < kernels::kRowSets; ++i) {
    args.sets[i].rows = routing.sets[i].kernel_rows(lists.index[i]);
  }
}

// Row by row without routes, on the host.
void norm_rows_alone(const NormCall& call, bool add, const Routing& routing, const Tensor& y,
                     const Tensor& sum) {
  for (int i = 0; i < kernels::kRowSets; ++i) {
    for (std::int64_t j = 0; j < routing.sets[i].rows.numel(); ++j) {
      const std::int64_t row = routing.sets[i].rows[j].item<std::int64_t>();
      kernels::RmsNormArgs args = call.args(add, false);
      const auto element = static_cast<std::int64_t>(call.x.host.element_size());
      const auto at_row = [&](const void* base, std::int64_t stride) {
        return static_cast<const char*>(base) + row * stride * element;
      };
      args.x = at_row(args.x, args.x_stride);
      if (add) args.delta = at_row(args.delta, args.delta_stride);
      set_outputs(args, y.narrow(0, row, 1), sum.narrow(0, row, 1));
      args.rows = 1;
      args.sets[0] = {args.sets[i].weight, {nullptr, 0, 1}};
      args.sets[1] = {};
      kernels::rms_norm_ref(args);
    }
  }
}

void check_norm_case(const Runner<kernels::RmsNormArgs>& kernel, at::Generator& generator,
                     const Routing& routing, std::int64_t width, Layout layout,
                     at::ScalarType dtype, bool add) {
  const std::string what = describe(dtype, routing, width, layout);
  CAPTURE(what);
  const NormCall call = make_norm(generator, routing.rows, width, layout, dtype, kernel.device);
  const at::TensorOptions cpu(dtype);
  const Field y = make_field(routing.rows, width, layout, cpu.device(kernel.device));
  const Field sum = make_field(routing.rows, width, layout, cpu.device(kernel.device));
  const Tensor expected_y = at::empty({routing.rows, width}, cpu),
               expected_sum = at::empty_like(expected_y);
  norm_rows_alone(call, add, routing, expected_y, expected_sum);
  const Lists lists(routing, kernel.device);
  kernels::RmsNormArgs args = call.args(add, true);
  set_rows(args, routing, lists);
  set_outputs(args, y.rows, sum.rows);
  kernel.run(args);
  if (!kernel.device.is_cpu()) {  // the reference knows no shapes
    const Tensor first_y = y.rows.clone(), first_sum = sum.rows.clone();
    for (args.shape = 1; args.shape < kernels::kNormShapes; ++args.shape) {
      y.rows.fill_(kCanary);
      kernel.run(args);
      CHECK(at::equal(y.rows, first_y));
      CHECK(at::equal(sum.rows, first_sum));
    }
  }
  const Tensor routed = routing.routed(), there = routed.to(kernel.device);
  if (routed.numel() > 0) {
    check_close(y.rows.index_select(0, there), expected_y.index_select(0, routed),
                ulps(kernel.device), what);
    if (add) {
      check_close(sum.rows.index_select(0, there), expected_sum.index_select(0, routed), 0, what);
    }
  }
  CHECK(is_untouched_around(y, routed));
  CHECK(is_untouched_around(sum, add ? routed : rows_between(0, 0)));
}

}  // namespace

void check_routed_rms_norm(const Runner<kernels::RmsNormArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(21);
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t rows : {1, 3, 17, 258, 1026}) {
      for (const std::int64_t width : {64, 130, 3584, 40000}) {
        if (rows * width > (kernel.device.is_cpu() ? 60000 : 100000)) continue;
        for (const Layout layout : kLayouts) {
          if (rows * width > 20000 && layout != Layout::packed) continue;
          for (const Routing& routing : routings(rows)) {
            for (const bool add : {false, true})
              check_norm_case(kernel, generator, routing, width, layout, dtype, add);
          }
        }
      }
    }
  }
  // the sizes of a step: 1024 x 1024 in two branches, and 512 x 512; ranges, and lists
  for (const std::int64_t rows : {8208, 1026}) {
    if (kernel.device.is_cpu()) break;  // references know no sizes
    const std::vector<Routing> all = routings(rows);
    check_norm_case(kernel, generator, all.at(5), 3584, Layout::packed, at::kBFloat16, true);
    check_norm_case(kernel, generator, all.at(8), 3584, Layout::packed, at::kHalf, true);
  }
}

// --- qk_norm_rope -----------------------------------------------------------------------------

namespace {

struct Heads {
  std::int64_t heads, kv_heads, head_dim;
};
struct RopeCall {
  Both qkv, q_weights[kernels::kRowSets], k_weights[kernels::kRowSets], cos, sin, slots;
};

RopeCall make_rope(at::Generator& generator, const Heads& h, std::int64_t rows, Layout layout,
                   at::ScalarType dtype, at::Device device) {
  const auto draw = [&](std::int64_t count, std::int64_t width, Layout how) {
    return Both(random_rows(generator, count, width, 1, how, at::TensorOptions(dtype)), device);
  };
  const auto weight = [&] { return draw(1, h.head_dim, Layout::packed); };
  const Tensor angles = at::randn({rows, h.head_dim / 2}, generator, at::kFloat);
  const Tensor slots = at::randperm(kCacheSamples * cache_capacity(rows), generator, at::kLong);
  return {draw(rows, (h.heads + 2 * h.kv_heads) * h.head_dim, layout),
          {weight(), weight()},
          {weight(), weight()},
          Both(angles.cos(), device),
          Both(angles.sin(), device),
          Both(slots.narrow(0, 0, rows).clone(), device)};
}

kernels::QkNormRopeArgs rope_args(const RopeCall& call, const Heads& h, bool every_step,
                                  bool there) {
  const auto of = [there](const Both& value) { return there ? value.there : value.host; };
  kernels::QkNormRopeArgs args;
  args.qkv = of(call.qkv).data_ptr();
  args.cos = of(call.cos).data_ptr<float>();
  args.sin = of(call.sin).data_ptr<float>();
  args.slots = of(call.slots).data_ptr<std::int64_t>();
  args.rows = call.qkv.host.size(0);
  args.heads = h.heads;
  args.kv_heads = h.kv_heads;
  args.head_dim = h.head_dim;
  args.samples = kCacheSamples;
  args.capacity = cache_capacity(args.rows);
  args.qkv_stride = of(call.qkv).stride(0);
  args.cos_stride = args.sin_stride = h.head_dim / 2;
  args.key_stride = args.value_stride = args.capacity * h.kv_heads * h.head_dim;
  args.eps = kEps;
  args.round_every_step = every_step;
  args.dtype = kernel_dtype(call.qkv.host.scalar_type());
  for (int i = 0; i < kernels::kRowSets; ++i) {
    args.sets[i].q_weight = of(call.q_weights[i]).data_ptr();
    args.sets[i].k_weight = of(call.k_weights[i]).data_ptr();
  }
  return args;
}

struct RopeOutputs {
  Tensor q, keys, values;
  RopeOutputs(std::int64_t rows, const Heads& h, const at::TensorOptions& options)
      : q(at::full({rows, h.heads, h.head_dim}, kCanary, options)),
        keys(at::full({kCacheSamples, cache_capacity(rows), h.kv_heads, h.head_dim}, kCanary,
                      options)),
        values(keys.clone()) {}
  void set(kernels::QkNormRopeArgs& args) const {
    args.q = q.data_ptr();
    args.keys = keys.data_ptr();
    args.values = values.data_ptr();
  }
};

// Row by row without routes, on the host.
void rope_rows_alone(const RopeCall& call, const Heads& h, bool every_step, const Routing& routing,
                     const RopeOutputs& out) {
  for (int i = 0; i < kernels::kRowSets; ++i) {
    for (std::int64_t j = 0; j < routing.sets[i].rows.numel(); ++j) {
      const std::int64_t row = routing.sets[i].rows[j].item<std::int64_t>();
      kernels::QkNormRopeArgs args = rope_args(call, h, every_step, false);
      out.set(args);
      args.qkv = call.qkv.host[row].data_ptr();
      args.cos = call.cos.host[row].data_ptr<float>();
      args.sin = call.sin.host[row].data_ptr<float>();
      args.slots += row;
      args.q = out.q[row].data_ptr();
      args.rows = 1;  // its cache stays that of all rows
      args.sets[0] = {args.sets[i].q_weight, args.sets[i].k_weight, {nullptr, 0, 1}};
      args.sets[1] = {};
      kernels::qk_norm_rope_ref(args);
    }
  }
}

void check_rope_case(const Runner<kernels::QkNormRopeArgs>& kernel, at::Generator& generator,
                     const Heads& h, const Routing& routing, Layout layout, at::ScalarType dtype,
                     bool every_step) {
  const std::string what = describe(dtype, routing, h.head_dim, layout);
  CAPTURE(what);
  const RopeCall call = make_rope(generator, h, routing.rows, layout, dtype, kernel.device);
  const RopeOutputs expected(routing.rows, h, at::TensorOptions(dtype));
  const RopeOutputs found(routing.rows, h, at::TensorOptions(dtype).device(kernel.device));
  rope_rows_alone(call, h, every_step, routing, expected);
  const Lists lists(routing, kernel.device);
  kernels::QkNormRopeArgs args = rope_args(call, h, every_step, true);
  for (int i = 0; i < kernels::kRowSets; ++i) {
    args.sets[i].rows = routing.sets[i].kernel_rows(lists.index[i]);
  }
  found.set(args);
  kernel.run(args);
  check_rotated(found.q, expected.q, what);  // canaries included
  check_rotated(found.keys, expected.keys, what);
  CHECK(at::equal(found.values.cpu(), expected.values));
  if (!kernel.device.is_cpu()) return;
  CHECK(at::equal(found.q, expected.q));
  CHECK(at::equal(found.keys, expected.keys));
}

}  // namespace

void check_routed_qk_norm_rope(const Runner<kernels::QkNormRopeArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(22);
  for (const at::ScalarType dtype : kDtypes) {
    for (const Heads& h : {Heads{28, 4, 128}, Heads{4, 2, 16}, Heads{3, 1, 10}}) {
      for (const std::int64_t rows : {1, 3, 17, 258}) {
        for (const Layout layout : kLayouts) {
          if (rows == 258 && (layout != Layout::packed || h.head_dim == 128)) continue;
          for (const Routing& routing : routings(rows)) {
            for (const bool every_step : {false, true})
              check_rope_case(kernel, generator, h, routing, layout, dtype, every_step);
          }
        }
      }
    }
  }
  const Heads released = {28, 4, 128}, few = {4, 2, 16};
  for (const std::int64_t rows : {258, 1026, 8208}) {
    if (rows > 258 && kernel.device.is_cpu()) break;  // references know no sizes
    const Heads& h = kernel.device.is_cpu() ? few : released;
    const std::vector<Routing> all = routings(rows);
    for (const Routing& routing : {all.at(5), all.at(8)}) {  // ranges, and lists
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
        check_rope_case(kernel, generator, h, routing, Layout::packed, dtype, false);
    }
  }
}

// --- quantised --------------------------------------------------------------------------------

namespace {

constexpr std::int64_t kCodeCanary = 0xA5;

struct Quantised {
  Tensor codes;   // uint8 [rows, width]
  Tensor scales;  // float32 [rows]
};

// kernels/quantize_rows/quantize_rows.h in ATen, on the CPU.
Quantised quantise(const Tensor& rows) {
  const Tensor wide = rows.cpu().to(at::kFloat);
  const Tensor scales = (wide.abs().amax(-1) / 448.0F).clamp_min(std::numeric_limits<float>::min());
  const Tensor scaled = wide * (1.0F / scales).unsqueeze(1);
  const Tensor codes = scaled.clamp(-448.0, 448.0).to(at::kFloat8_e4m3fn);
  return {codes.view(at::kByte), scales};
}

// Codes and scales around which there are canaries.
struct CodeField {
  Field codes, scales;
  CodeField(std::int64_t rows, std::int64_t width, Layout layout, at::Device device)
      : codes(make_field(rows, width, layout, at::TensorOptions(at::kByte).device(device),
                         kCodeCanary)),
        scales(make_field(rows, 1, Layout::packed, at::TensorOptions(at::kFloat).device(device))) {}

  void check(const Tensor& plain, const Tensor& routed) const {
    const Tensor there = routed.to(plain.device());
    if (routed.numel() > 0) {
      const Quantised expected = quantise(plain.index_select(0, there));
      CHECK(at::equal(codes.rows.index_select(0, there).cpu(), expected.codes));
      CHECK(at::equal(scales.rows.index_select(0, there).cpu().squeeze(1), expected.scales));
      // The largest value of a row that is not zero takes the largest code.
      CHECK((expected.codes.bitwise_and(0x7f).amax().item<std::int64_t>() == 0x7e));
    }
    CHECK(is_untouched_around(codes, routed, kCodeCanary));
    CHECK(is_untouched_around(scales, routed));
  }
};

// Of different sizes, the first of several all zeros.
void spread_rows(const Tensor& rows) {
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    rows[i].mul_(rows.size(0) > 1 && i == 0 ? 0.0 : std::pow(8.0, static_cast<double>(i % 3 - 1)));
  }
}

void check_quantised_norm(const Runner<kernels::RmsNormArgs>& kernel, at::Generator& generator,
                          const Routing& routing, std::int64_t width, Layout layout,
                          at::ScalarType dtype, bool add) {
  const std::string what = describe(dtype, routing, width, layout);
  CAPTURE(what);
  const std::int64_t rows = routing.rows;
  const NormCall call = make_norm(generator, rows, width, layout, dtype, kernel.device);
  spread_rows(call.x.there);
  spread_rows(call.delta.there);
  const at::TensorOptions options = at::TensorOptions(dtype).device(kernel.device);
  const Field plain = make_field(rows, width, layout, options);
  const Field sum = make_field(rows, width, layout, options);
  const CodeField coded(rows, width, layout, kernel.device);
  const Lists lists(routing, kernel.device);
  kernels::RmsNormArgs args = call.args(add, true);
  set_rows(args, routing, lists);
  set_outputs(args, plain.rows, sum.rows);
  kernel.run(args);
  const Tensor plain_sum = sum.base.clone();
  set_outputs(args, coded.codes.rows, sum.rows);
  args.scales = coded.scales.rows.data_ptr<float>();
  kernel.run(args);
  CHECK(at::equal(sum.base, plain_sum));
  coded.check(plain.rows, routing.routed());
}

}  // namespace

void check_quantised_rms_norm(const Runner<kernels::RmsNormArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(23);
  for (const at::ScalarType dtype : kDtypes) {
    // held by a warp, by a block, by a block with more vectors each, and not held
    for (const std::int64_t width : {64, 130, 1000, 3584, 17000, 40000}) {
      for (const std::int64_t rows : {1, 5, 258}) {
        if (rows * width > 100000) continue;
        for (const Layout layout : kLayouts) {
          const std::vector<Routing> all = routings(rows);
          // whole calls, and where there are rows enough two lists and a row outside
          for (const std::size_t i : {std::size_t{0}, std::size_t{8}}) {
            if (i >= all.size()) continue;
            for (const bool add : {false, true})
              check_quantised_norm(kernel, generator, all[i], width, layout, dtype, add);
          }
        }
      }
    }
  }
  if (kernel.device.is_cpu()) return;  // to the reference rows are rows
  // More rows than there are blocks: of each, some are under way while others are worked on.
  check_quantised_norm(kernel, generator, routings(2052).at(8), 3584, Layout::packed, at::kBFloat16,
                       true);
}

namespace {

void check_quantised_silu(const Runner<kernels::SiluMulArgs>& kernel, at::Generator& generator,
                          std::int64_t rows, std::int64_t inner, Layout layout,
                          at::ScalarType dtype) {
  const std::string what = fmt::format("{} [{}, {}] layout {}", c10::toString(dtype), rows, inner,
                                       static_cast<int>(layout));
  CAPTURE(what);
  const at::TensorOptions options = at::TensorOptions(dtype).device(kernel.device);
  const Tensor gate_up = random_rows(generator, rows, 2 * inner, 1, layout, options);
  spread_rows(gate_up);
  const Field plain = make_field(rows, inner, layout, options);
  kernels::SiluMulArgs args;
  args.gate_up = gate_up.data_ptr();
  args.gate_up_stride = gate_up.stride(0);
  args.rows = rows;
  args.inner = inner;
  args.dtype = kernel_dtype(dtype);
  args.y = plain.rows.data_ptr();
  args.y_stride = plain.rows.stride(0);
  kernel.run(args);
  for (args.shape = 0; args.shape < kernels::kSiluShapes; ++args.shape) {
    CAPTURE(args.shape);
    const CodeField coded(rows, inner, layout, kernel.device);
    args.y = coded.codes.rows.data_ptr();
    args.y_stride = coded.codes.rows.stride(0);
    args.scales = coded.scales.rows.data_ptr<float>();
    kernel.run(args);
    coded.check(plain.rows, rows_between(0, rows));
  }
}

}  // namespace

void check_quantised_silu_mul(const Runner<kernels::SiluMulArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(24);
  for (const at::ScalarType dtype : kDtypes) {
    for (const std::int64_t inner : {1, 64, 65, 2056, 18944, 40000}) {
      for (const std::int64_t rows : {0, 1, 5, 17}) {
        if (rows * inner > 100000) continue;
        for (const Layout layout : kLayouts)
          check_quantised_silu(kernel, generator, rows, inner, layout, dtype);
      }
    }
  }
  if (kernel.device.is_cpu()) return;  // to the reference rows are rows
  // More rows than there are blocks: of each, some are under way while others are worked on.
  check_quantised_silu(kernel, generator, 601, 18944, Layout::packed, at::kBFloat16);
}

void check_dequantize_rows(const Runner<kernels::DequantizeRowsArgs>& kernel) {
  struct Size {
    std::int64_t rows, width;
  };
  at::Generator generator = at::detail::createCPUGenerator(25);
  for (const at::ScalarType dtype : kDtypes) {
    for (const Size& size :
         {Size{0, 8}, {1, 1}, {3, 17}, {5, 64}, {258, 130}, {17, 18944}, {4608, 3584}}) {
      if (size.rows * size.width > 1'000'000 && kernel.device.is_cpu()) continue;
      const std::string what =
          fmt::format("{} [{}, {}]", c10::toString(dtype), size.rows, size.width);
      CAPTURE(what);
      const Tensor values = at::randint(-127, 128, {size.rows, size.width}, generator, at::kChar);
      const Tensor scales = at::rand({size.rows}, generator, at::kFloat) + 0.01;
      const Tensor values_there = values.to(kernel.device), scales_there = scales.to(kernel.device);
      const Field y = make_field(size.rows, size.width, Layout::packed,
                                 at::TensorOptions(dtype).device(kernel.device));
      kernels::DequantizeRowsArgs args;
      args.values = values_there.const_data_ptr<std::int8_t>();
      args.scales = scales_there.const_data_ptr<float>();
      args.y = y.rows.data_ptr();
      args.rows = size.rows;
      args.width = size.width;
      args.dtype = kernel_dtype(dtype);
      kernel.run(args);
      CHECK(at::equal(y.rows.cpu(), (values.to(at::kFloat) * scales.unsqueeze(1)).to(dtype)));
      CHECK(is_untouched_around(y, rows_between(0, size.rows)));
    }
  }
}

void check_silu_of_every_gate(const Runner<kernels::SiluMulArgs>& kernel) {
  constexpr std::int64_t kRows = 256, kInner = 256;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const Tensor bits = at::arange(kRows * kInner, at::kInt).to(at::kShort).view({kRows, kInner});
    const Tensor gate_up = at::cat({bits.view(dtype), at::ones({kRows, kInner}, dtype)}, 1);
    const auto run = [&](const Tensor& from, const Runner<kernels::SiluMulArgs>& runner) {
      const Tensor y = at::empty({kRows, kInner}, from.options());
      kernels::SiluMulArgs args;
      args.gate_up = from.data_ptr();
      args.y = y.data_ptr();
      args.rows = kRows;
      args.inner = args.y_stride = kInner;
      args.gate_up_stride = 2 * kInner;
      args.dtype = kernel_dtype(dtype);
      runner.run(args);
      return y.cpu();
    };
    const Tensor expected = run(gate_up, {at::kCPU, kernels::silu_mul_ref});
    const Tensor found = run(gate_up.to(kernel.device), kernel);
    CHECK(at::equal(found.isnan(), expected.isnan()));
    CHECK(at::equal(found.signbit().logical_or(found.isnan()),
                    expected.signbit().logical_or(expected.isnan())));
    const Tensor apart = (ordered_bits(found.nan_to_num(0.0, 1e4, -1e4)) -
                          ordered_bits(expected.nan_to_num(0.0, 1e4, -1e4)))
                             .abs();
    CHECK(count(apart > 1) == 0);
    CHECK(count(apart > 0) <= (dtype == at::kHalf ? 64 : 8));
    // The quotient by itself, where the exponential leaves no doubt.
    const Tensor gate = bits.view(dtype).to(at::kFloat);
    CHECK(
        count((found.to(at::kFloat) != gate).logical_and(gate > 30).logical_and(gate.isfinite())) ==
        0);
  }
}

}  // namespace diptych::testing

#include "tests/kernels/linear_cases.h"

#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/kernels/field.h"
#include "tests/kernels/routings.h"

namespace diptych::testing {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

struct Size {
  std::int64_t inputs, outputs;
};

// What meets what: rows of e4m3 or plain ones, weights of e4m3, int8 or as the rows are.
struct Kind {
  kernels::Stored weights;
  bool coded_rows;
  const char* name;
  std::int64_t most_rows() const {
    const bool one = weights == kernels::Stored::e4m3 && !coded_rows;
    return one ? 1 : kernels::kMostLinearRows;
  }
};
constexpr Kind kKinds[] = {{kernels::Stored::e4m3, true, "e4m3 by e4m3"},
                           {kernels::Stored::e4m3, false, "rows by e4m3"},
                           {kernels::Stored::i8, false, "rows by int8"}};
constexpr Kind kPlain = {kernels::Stored::plain, false, "rows by plain weights"};

struct Call {
  Kind kind;
  Tensor x, x_scales, weight, scales, bias;  // on the device; x_scales of coded rows alone
  Tensor expected;                           // float64 [rows, outputs], on the host
};

// Every code but NaN turns up.
Tensor draw_codes(at::Generator& generator, at::IntArrayRef sizes, kernels::Stored stored) {
  if (stored == kernels::Stored::i8) return at::randint(-127, 128, sizes, generator, at::kChar);
  return (at::randn(sizes, generator, at::kFloat) * 100)
      .clamp(-448.0, 448.0)
      .to(at::kFloat8_e4m3fn);
}

Call make_call(at::Generator& generator, const Kind& kind, std::int64_t rows, const Size& size,
               at::ScalarType dtype, at::Device device) {
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator, at::kFloat); };
  Tensor x = draw({rows, size.inputs}).to(dtype);
  const bool plain = kind.weights == kernels::Stored::plain;
  const double small = 1 / std::sqrt(static_cast<double>(size.inputs));
  const Tensor weight = plain ? (draw({size.outputs, size.inputs}) * small).to(dtype)
                              : draw_codes(generator, {size.outputs, size.inputs}, kind.weights);
  const Tensor scales =
      plain ? at::ones({size.outputs}) : (draw({size.outputs}).abs() + 0.5) * small / 100;
  const Tensor bias = draw({size.outputs}).to(dtype);
  Tensor x_scales = at::ones({rows});
  if (kind.coded_rows) {
    x = draw_codes(generator, {rows, size.inputs}, kernels::Stored::e4m3);
    x_scales = (draw({rows}).abs() + 0.5) / 100;
  }
  const auto wide = [](const Tensor& t) { return t.to(at::kFloat).to(at::kDouble); };
  const Tensor expected = at::linear(wide(x) * wide(x_scales).unsqueeze(1),
                                     wide(weight) * wide(scales).unsqueeze(1), wide(bias));
  return {kind,
          x.to(device),
          kind.coded_rows ? x_scales.to(device) : Tensor(),
          weight.to(device),
          plain ? Tensor() : scales.to(device),
          bias.to(device),
          expected};
}

kernels::LinearRowArgs args_of(const Call& call, const Tensor& y) {
  kernels::LinearRowArgs args;
  args.x = call.x.data_ptr();
  args.x_scales = call.kind.coded_rows ? call.x_scales.data_ptr<float>() : nullptr;
  args.weight = call.weight.data_ptr();
  args.scales = call.scales.defined() ? call.scales.data_ptr<float>() : nullptr;
  args.bias = call.bias.data_ptr();
  args.y = y.data_ptr();
  args.rows = y.size(0);
  args.inputs = call.x.size(1);
  args.outputs = y.size(1);
  args.dtype = kernel_dtype(y.scalar_type());
  args.stored = call.kind.weights;
  return args;
}

// [rows, outputs], and nothing around them is written.
Tensor products_of(const Runner<kernels::LinearRowArgs>& kernel, const Call& call,
                   at::ScalarType dtype) {
  const Field y = make_field(call.x.size(0), call.weight.size(0), Layout::packed,
                             at::TensorOptions(dtype).device(kernel.device));
  kernel.run(args_of(call, y.rows));
  const Tensor rows = y.rows.clone();
  CHECK(is_untouched_around(y, at::arange(rows.size(0))));
  return rows;
}

// Rounded once, and sums of float32 in some order.
void check_near(const Tensor& found, const Tensor& expected, at::ScalarType dtype) {
  const double step = dtype == at::kFloat ? 2e-6 : dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  const double most = expected.abs().max().item<double>();
  const Tensor apart = (found.cpu().to(at::kDouble) - expected).abs();
  const Tensor allowed = expected.abs() * step + 2e-6 * most;
  CHECK(count(apart > allowed) == 0);
  CHECK(most > 0.05);
}

}  // namespace

void check_linear_row_quantised(const Runner<kernels::LinearRowArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(31);
  for (const at::ScalarType dtype : kDtypes) {
    // Less than a warp's piece, parts of tiles and of pieces, more pieces than are under way at
    // once, and what no vector divides.
    for (const Size& size : {Size{16, 5},
                             {48, 16},
                             {160, 37},
                             {1040, 17},
                             {3584, 48},
                             {5136, 33},
                             {131, 33},
                             {1, 3},
                             {12288, 5},  // two warps an output, then four
                             {12304, 5},
                             {12301, 5},
                             {1040, 4224},  // more warps a block, then fewer
                             {1040, 4232}}) {
      if (size.outputs > 4000 && kernel.device.is_cpu()) continue;
      for (const Kind& kind : kKinds) {
        for (const std::int64_t rows : {1, 2, 3, 5, 8, 9, 16}) {
          if (rows > kind.most_rows()) continue;
          if (kernel.device.is_cpu() && rows != 1 && rows != 3 && rows != 16) continue;
          const Call call = make_call(generator, kind, rows, size, dtype, kernel.device);
          for (int shape = 0; shape < kernels::kLinearShapes; ++shape) {
            const std::string what =
                fmt::format("{} {} {} x {} -> {} shape {}", kind.name, c10::toString(dtype), rows,
                            size.inputs, size.outputs, shape);
            CAPTURE(what);
            const Field y = make_field(rows, size.outputs, Layout::packed,
                                       at::TensorOptions(dtype).device(kernel.device));
            kernels::LinearRowArgs args = args_of(call, y.rows);
            args.shape = shape;
            kernel.run(args);
            check_near(y.rows, call.expected, dtype);
            CHECK(is_untouched_around(y, at::arange(rows)));
          }
        }
      }
    }
  }
}

namespace {

void check_rows_alone(const Runner<kernels::LinearRowArgs>& kernel, const Call& call,
                      at::ScalarType dtype, int shape) {
  const auto run = [&](const Call& rows) {
    const Tensor y = at::empty({rows.x.size(0), rows.weight.size(0)},
                               at::TensorOptions(dtype).device(kernel.device));
    kernels::LinearRowArgs args = args_of(rows, y);
    args.shape = shape;
    kernel.run(args);
    return y;
  };
  const Tensor all = run(call);
  for (const auto& [row, rows] : {std::pair{0, 1}, {7, 1}, {15, 1}, {5, 8}}) {
    CAPTURE(row);
    Call part = call;
    part.x = call.x.narrow(0, row, rows);
    if (call.kind.coded_rows) part.x_scales = call.x_scales.narrow(0, row, rows);
    CHECK(at::equal(run(part), all.narrow(0, row, rows)));
  }
}

}  // namespace

void check_linear_row_alone(const Runner<kernels::LinearRowArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(32);
  for (const at::ScalarType dtype : kDtypes) {
    for (const Kind& kind : kKinds) {
      if (kind.most_rows() == 1) continue;
      for (const Size& size : {Size{1040, 37}, {5136, 37}, {131, 37}, {12304, 37}, {1040, 4232}}) {
        if (size.outputs > 4000 && kernel.device.is_cpu()) continue;
        for (int shape = 0; shape < kernels::kLinearShapes; ++shape) {
          CAPTURE(size.inputs);
          CAPTURE(shape);
          check_rows_alone(kernel, make_call(generator, kind, 16, size, dtype, kernel.device),
                           dtype, shape);
        }
      }
    }
  }
}

void check_linear_row_plain(const Runner<kernels::LinearRowArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(34);
  const auto run = [&](const Call& call, at::ScalarType dtype) {
    return products_of(kernel, call, dtype);
  };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    // Less than a warp's piece, parts of pieces and tiles, every warp of a block and one turn more,
    // and both sides of where a product is cut otherwise.
    for (const Size& size : {Size{8, 5},
                             {64, 16},
                             {72, 37},
                             {1040, 17},
                             {1544, 33},
                             {12288, 40},
                             {1544, 4224},
                             {1544, 4232},
                             {520, 16383},
                             {520, 16391}}) {
      if (size.outputs > 4000 && kernel.device.is_cpu()) continue;
      for (const std::int64_t rows : {2, 3, 8, 9, 15, 16}) {
        const std::string what =
            fmt::format("{} {} x {} -> {}", c10::toString(dtype), rows, size.inputs, size.outputs);
        CAPTURE(what);
        Call call = make_call(generator, kPlain, rows, size, dtype, kernel.device);
        const Tensor all = run(call, dtype);
        check_near(all, call.expected, dtype);
        // Whatever rows come with them, and whatever is in those.
        const Tensor x = call.x;
        call.x = x.narrow(0, rows - 2, 2).contiguous();
        CHECK(at::equal(run(call, dtype), all.narrow(0, rows - 2, 2)));
        call.x = x.clone();
        call.x.select(0, 0).fill_(std::numeric_limits<double>::infinity());
        CHECK(at::equal(run(call, dtype).narrow(0, 1, rows - 1), all.narrow(0, 1, rows - 1)));
      }
    }
  }
}

void check_linear_row_of_powers(const Runner<kernels::LinearRowArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(34);
  for (const Kind& kind : kKinds) {
    if (kind.coded_rows) continue;
    // The widest that is held in shared memory, and more.
    for (const std::int64_t inputs : {16, 4096, 24576, 24592}) {
      if (kernel.device.is_cpu() && inputs > 4096) continue;
      CAPTURE(kind.name);
      CAPTURE(inputs);
      Call call = make_call(generator, kind, 1, {inputs, 21}, at::kBFloat16, kernel.device);
      const Tensor bias = call.bias.clone(), x = call.x;
      call.bias.zero_();
      const auto products = [&] { return products_of(kernel, call, at::kBFloat16); };
      const Tensor y = products();
      for (const double power : {0x1p90, 0x1p20, 0x1p-60, 0x1p-90}) {
        CAPTURE(power);
        call.x = x * power;
        CHECK(at::equal(products(), y * power));
      }
      // One element of 2^14 meets a weight of 0: the rest, of 2^-17, remains.
      call.x = at::full_like(x, 0x1p-17);
      call.x.select(1, 3).fill_(0x1p14);
      const Tensor weight = call.weight;
      call.weight = weight.to(at::kFloat)
                        .index_fill(1, at::tensor({std::int64_t{3}}).to(kernel.device), 0)
                        .to(weight.scalar_type());
      const Tensor sums =
          (call.weight.to(at::kFloat).to(at::kDouble).sum(1) * call.scales.to(at::kDouble)).cpu();
      CHECK((products()[0].cpu().to(at::kDouble) - sums * 0x1p-17).abs().max().item<double>() <=
            0x1p-8 * 0x1p-17 * sums.abs().max().item<double>());
      call.weight = weight;
      call.x = at::zeros_like(x);
      call.bias = bias;
      CHECK(at::equal(products()[0], bias));
    }
  }
}

// What lies behind a lane's last input is not added, whatever x it would meet.
void check_linear_row_of_infinities(const Runner<kernels::LinearRowArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(33);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Kind& kind : kKinds) {
      if (kind.coded_rows) continue;
      for (const std::int64_t inputs : {160, 2064, 131}) {
        CAPTURE(kind.name);
        CAPTURE(inputs);
        Call call = make_call(generator, kind, 1, {inputs, 5}, dtype, kernel.device);
        call.weight =
            at::full({5, inputs}, 3, at::kFloat).to(call.weight.scalar_type()).to(kernel.device);
        call.x.fill_(1);
        call.x.select(1, inputs - 1).fill_(std::numeric_limits<double>::infinity());
        const Tensor y = at::zeros({1, 5}, at::TensorOptions(dtype).device(kernel.device));
        kernel.run(args_of(call, y));
        CHECK(y.cpu().isposinf().all().item<bool>());
      }
    }
  }
}

namespace {

struct MixedSize {
  std::int64_t rows, inputs, outputs;
  std::int64_t work() const { return rows * inputs * outputs; }
};

void check_mixed(const Runner<kernels::Int8LinearArgs>& kernel, at::Generator& generator,
                 const MixedSize& size, at::ScalarType dtype, bool biased) {
  const auto options = at::TensorOptions(dtype).device(kernel.device);
  const Tensor x = random_rows(generator, size.rows, size.inputs, 1, Layout::spaced, options);
  const Tensor weight =
      at::randint(-128, 128, {size.outputs, size.inputs}, generator, at::kChar).to(kernel.device);
  const Tensor scales = ((at::randn({size.outputs}, generator, at::kFloat).abs() + 0.5) /
                         std::sqrt(size.inputs) / 100)
                            .to(kernel.device);
  const Tensor bias = at::randn({size.outputs}, generator, at::kFloat).to(options);
  // On the device where it is much: float64 is float64.
  const at::Device by = size.work() > 20'000'000 ? kernel.device : at::Device(at::kCPU);
  const auto wide = [&](const Tensor& t) { return t.to(by).to(at::kFloat).to(at::kDouble); };
  const Tensor scaled = wide(weight) * wide(scales).unsqueeze(1);
  Tensor expected = at::linear(wide(x), scaled);
  if (biased) expected += wide(bias);
  const double step = dtype == at::kFloat ? 2e-6 : dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  // Rounded once. The tensor cores cut off what they add: at 18944 inputs one element in seven
  // million was beyond 2^-20 of the sizes of its terms.
  const Tensor allowed = expected.abs() * step + at::linear(wide(x).abs(), scaled.abs()) * 0x1p-19;
  kernels::Int8LinearArgs args;
  args.x = x.data_ptr();
  args.x_stride = x.stride(0);
  args.weight = weight.data_ptr<std::int8_t>();
  args.scales = scales.data_ptr<float>();
  args.bias = biased ? bias.data_ptr() : nullptr;
  args.rows = size.rows;
  args.inputs = size.inputs;
  args.outputs = size.outputs;
  args.dtype = kernel_dtype(dtype);
  Tensor first;
  for (args.shape = 0; args.shape < kernels::kInt8LinearShapes; ++args.shape) {
    CAPTURE(args.shape);
    const Field y = make_field(size.rows, size.outputs, Layout::spaced, options);
    args.y = y.rows.data_ptr();
    args.y_stride = y.rows.stride(0);
    kernel.run(args);
    const Tensor apart = (y.rows.to(by).to(at::kDouble) - expected).abs();
    CHECK(count((apart <= allowed).logical_not()) == 0);
    CHECK(expected.abs().max().item<double>() > 0.05);
    if (!first.defined()) first = y.rows.clone();
    CHECK(at::equal(y.rows, first));
    CHECK(is_untouched_around(y, at::arange(size.rows)));
    if (kernel.device.is_cpu()) break;  // the reference has no shapes
  }
}

}  // namespace

void check_int8_linear(const Runner<kernels::Int8LinearArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(36);
  for (const at::ScalarType dtype : kDtypes) {
    if (dtype == at::kFloat && !kernel.device.is_cpu()) continue;  // the reference alone takes it
    // Less than a tile and a piece, exactly one, parts of both, a block without outputs in a
    // cluster, more tiles than a GPU has blocks, of an odd number of pieces, too, and long sums.
    for (const MixedSize& size : {MixedSize{1, 16, 8},
                                  {17, 64, 128},
                                  {64, 128, 256},
                                  {3, 80, 136},
                                  {130, 208, 264},
                                  {257, 1040, 40},
                                  {1026, 3584, 4608},
                                  {8208, 192, 2304},
                                  {2048, 18944, 3584}}) {
      if (size.work() > 20'000'000 && kernel.device.is_cpu()) continue;
      for (const bool biased : {false, true}) {
        const std::string what = fmt::format("{} {} x {} -> {}, bias: {}", c10::toString(dtype),
                                             size.rows, size.inputs, size.outputs, biased);
        CAPTURE(what);
        check_mixed(kernel, generator, size, dtype, biased);
      }
    }
  }
}

namespace {

struct GatedSize {
  std::int64_t rows, inputs, inner;
  std::int64_t work() const { return rows * inputs * inner; }
};

void check_gated(const Runner<kernels::GatedLinearArgs>& kernel, at::Generator& generator,
                 const GatedSize& size, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype).device(kernel.device);
  const Tensor x = random_rows(generator, size.rows, size.inputs, 1, Layout::spaced, options);
  // Of every third row gates are so large that the activation takes another way; float16 ends at
  // 65504.
  const double large = dtype == at::kHalf ? 20 : 100;
  const Tensor scale =
      at::where(at::arange(size.rows).remainder(3) == 2, large, 1.0).to(at::kDouble).unsqueeze(1);
  x.mul_(scale.to(options));
  const Tensor weight =
      (at::randn({2 * size.inner, size.inputs}, generator, at::kFloat) * 2 / std::sqrt(size.inputs))
          .to(dtype);
  const Tensor there = weight.to(kernel.device);
  const Field y = make_field(size.rows, size.inner, Layout::spaced, options);
  kernels::GatedLinearArgs args;
  args.x = x.data_ptr();
  args.x_stride = x.stride(0);
  args.weight = there.data_ptr();
  args.y = y.rows.data_ptr();
  args.y_stride = y.rows.stride(0);
  args.rows = size.rows;
  args.inputs = size.inputs;
  args.inner = size.inner;
  args.dtype = kernel_dtype(dtype);
  kernel.run(args);

  // On the device where it is much: float64 is float64.
  const at::Device by = size.work() > 20'000'000 ? kernel.device : at::Device(at::kCPU);
  const Tensor products = at::linear(x.to(by).to(at::kDouble), weight.to(by).to(at::kDouble));
  const Tensor gate = products.narrow(1, 0, size.inner),
               up = products.narrow(1, size.inner, size.inner);
  const Tensor expected = at::silu(gate) * up;
  // gate, up, silu(gate) and the result are rounded; silu is nowhere steeper than 1.1.
  const double step = dtype == at::kFloat ? 1e-6 : dtype == at::kBFloat16 ? 0x1p-8 : 0x1p-11;
  const Tensor allowed = (1.1 * (gate * up).abs() + 3 * expected.abs()) * (1.02 * step) +
                         scale.to(by).square() * (dtype == at::kFloat ? 1e-5 : 1e-4);  // the sums
  const Tensor apart = (y.rows.to(by).to(at::kDouble) - expected).abs();
  CHECK(count(apart > allowed) == 0);
  CHECK(expected.abs().max().item<double>() > 0.1);
  CHECK(is_untouched_around(y, at::arange(size.rows)));
}

}  // namespace

void check_gated_linear(const Runner<kernels::GatedLinearArgs>& kernel) {
  at::Generator generator = at::detail::createCPUGenerator(34);
  for (const at::ScalarType dtype : kDtypes) {
    if (dtype == at::kFloat && !kernel.device.is_cpu()) continue;  // the reference alone takes it
    // Less than a tile and a piece, exactly one, parts of both, a block without rows in a cluster,
    // and more tiles than a GPU has blocks.
    for (const GatedSize& size : {GatedSize{1, 16, 8},
                                  {17, 64, 128},
                                  {128, 64, 64},
                                  {3, 72, 136},
                                  {130, 200, 264},
                                  {257, 128, 40},
                                  {1026, 3584, 1024},
                                  {8208, 256, 2304},
                                  {2048, 1040, 2056}}) {
      if (size.work() > 20'000'000 && kernel.device.is_cpu()) continue;
      const std::string what = fmt::format("{} {} x {} -> 2 x {}", c10::toString(dtype), size.rows,
                                           size.inputs, size.inner);
      CAPTURE(what);
      check_gated(kernel, generator, size, dtype);
    }
  }
}

namespace {

struct RoutedWeights {    // of one set
  Tensor values, scales;  // scales undefined of plain weights
  Tensor bias;
};

struct RoutedRows {
  Tensor values, scales;  // scales undefined of plain rows; with a gap between rows
};

struct RoutedKind {
  at::ScalarType dtype;
  kernels::Stored stored;
  std::string name() const {
    return fmt::format("{} {}", stored == kernels::Stored::plain ? "plain" : "e4m3",
                       c10::toString(dtype));
  }
};

RoutedWeights draw_weights(at::Generator& generator, const RoutedKind& kind, const Size& size,
                           at::Device device) {
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator, at::kFloat); };
  const double unit = 1 / std::sqrt(static_cast<double>(size.inputs));
  const Tensor bias = draw({size.outputs}).to(kind.dtype).to(device);
  if (kind.stored == kernels::Stored::plain)
    return {(draw({size.outputs, size.inputs}) * unit).to(kind.dtype).to(device), {}, bias};
  return {draw_codes(generator, {size.outputs, size.inputs}, kind.stored).to(device),
          ((draw({size.outputs}).abs() + 0.5) * unit / 100).to(device), bias};
}

RoutedRows draw_rows(at::Generator& generator, const RoutedKind& kind, std::int64_t rows,
                     std::int64_t inputs, at::Device device) {
  constexpr std::int64_t kGap = 16;
  const auto cut = [&](const Tensor& t) { return t.to(device).narrow(1, 0, inputs); };
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, generator, at::kFloat); };
  if (kind.stored == kernels::Stored::plain)
    return {cut(draw({rows, inputs + kGap}).to(kind.dtype)), {}};
  return {cut(draw_codes(generator, {rows, inputs + kGap}, kind.stored)),
          ((draw({rows}).abs() + 0.5) / 100).to(device)};
}

// In float64, where the values are: float64 is the same on every device.
Tensor widened(const Tensor& values, const Tensor& scales) {
  const Tensor wide = values.to(at::kFloat).to(at::kDouble);
  return scales.defined() ? wide * scales.to(at::kDouble).unsqueeze(1) : wide;
}

void check_routing(const Runner<kernels::RoutedLinearArgs>& kernel, const Routing& routing,
                   const RoutedRows& x, const RoutedWeights (&weights)[kernels::kRowSets],
                   const RoutedKind& kind, bool biased) {
  const std::int64_t inputs = x.values.size(1), outputs = weights[0].values.size(0);
  const auto options = at::TensorOptions(kind.dtype).device(kernel.device);
  const Field y = make_field(routing.rows, outputs, Layout::spaced, options);
  const auto scales_of = [](const Tensor& t) {
    return t.defined() ? t.data_ptr<float>() : nullptr;
  };
  Tensor index[kernels::kRowSets];
  kernels::RoutedLinearArgs args;
  args.x = x.values.data_ptr();
  args.x_scales = scales_of(x.scales);
  args.x_stride = x.values.stride(0);
  args.y = y.rows.data_ptr();
  args.y_stride = y.rows.stride(0);
  args.rows = routing.rows;
  args.inputs = inputs;
  args.outputs = outputs;
  args.dtype = kernel_dtype(kind.dtype);
  args.stored = kind.stored;
  for (int i = 0; i < kernels::kRowSets; ++i) {
    index[i] = routing.sets[i].rows.to(kernel.device);
    args.sets[i] = {weights[i].values.data_ptr(), scales_of(weights[i].scales),
                    biased ? weights[i].bias.data_ptr() : nullptr,
                    routing.sets[i].kernel_rows(index[i])};
  }
  kernel.run(args);
  // Rounded once. The tensor cores cut what they add off behind 13 bits of the largest term of e4m3
  // (DeepSeek-V3 Technical Report, section 3.3.2), behind 23 else: at 3584 inputs that was found to
  // be 2^-11.5 and 2^-21 of the sum of all terms' sizes where it is done on the CPU.
  const double step = kind.dtype == at::kFloat      ? 2e-6
                      : kind.dtype == at::kBFloat16 ? 0x1p-8
                                                    : 0x1p-11;
  const bool short_sums = kind.stored == kernels::Stored::e4m3 && kernel.device.is_cuda();
  for (int i = 0; i < kernels::kRowSets; ++i) {
    if (index[i].numel() == 0) continue;
    const Tensor wide = widened(x.values, x.scales).index_select(0, index[i]);
    const Tensor weight = widened(weights[i].values, weights[i].scales);
    Tensor expected = at::linear(wide, weight);
    if (biased) expected += weights[i].bias.to(at::kDouble);
    const double most = expected.abs().max().item<double>();
    const Tensor allowed = expected.abs() * step +
                           at::linear(wide.abs(), weight.abs()) * (short_sums ? 0x1p-10 : 0x1p-20);
    const Tensor found = y.rows.index_select(0, index[i]).to(at::kDouble);
    CHECK(count((found - expected).abs() > allowed) == 0);
    CHECK(most > 0.05);
  }
  CHECK(is_untouched_around(y, routing.routed()));
}

}  // namespace

void check_routed_linear(const Runner<kernels::RoutedLinearArgs>& kernel) {
  constexpr kernels::Stored kStored[] = {kernels::Stored::plain, kernels::Stored::e4m3};
  at::Generator generator = at::detail::createCPUGenerator(35);
  const auto check = [&](at::ScalarType dtype, kernels::Stored stored, const Size& size) {
    if (dtype == at::kFloat && !kernel.device.is_cpu()) return;  // the reference alone takes it
    const RoutedKind kind{dtype, stored};
    const RoutedWeights weights[] = {draw_weights(generator, kind, size, kernel.device),
                                     draw_weights(generator, kind, size, kernel.device)};
    for (const std::int64_t rows : {1, 3, 17, 258, 1026}) {
      if (rows * size.inputs * size.outputs > 500'000 && kernel.device.is_cpu()) continue;
      const RoutedRows x = draw_rows(generator, kind, rows, size.inputs, kernel.device);
      for (const Routing& routing : routings(rows)) {
        for (const bool biased : {false, true}) {
          const std::string what = fmt::format("{} {} x {} -> {} bias {}: {}", kind.name(), rows,
                                               size.inputs, size.outputs, biased, routing.name);
          CAPTURE(what);
          check_routing(kernel, routing, x, weights, kind, biased);
        }
      }
    }
  };
  // Less than a piece, a part of a tile, several tiles and no whole number of pieces, and more
  // tiles than a GPU has blocks.
  for (const at::ScalarType dtype : kDtypes) {
    for (const kernels::Stored stored : kStored) {
      for (const Size& size :
           {Size{16, 8}, {48, 16}, {64, 96}, {208, 136}, {1040, 264}, {3584, 520}, {272, 4608}}) {
        check(dtype, stored, size);
      }
    }
  }
}

}  // namespace diptych::testing

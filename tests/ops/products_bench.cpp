// Products of rows that two weight sets share out, at the sizes of BAGEL-7B: rows in two ranges, as
// the model lays them out, and listed rows, interleaved, which are gathered before and scattered
// behind, or given to the library as they are. Then the first half of a gated layer by two kernels
// and by one; and weights of int8 by a copy of them and as they are, beside plain ones.
// Milliseconds on the device as a step has them, launched by a CUDA graph on weights that no cache
// holds any more, and TFLOP/s.
#include <algorithm>
#include <array>
#include <functional>

#include <CLI/CLI.hpp>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "lib/ops/linear_operand.h"
#include "lib/runtime/launch_times.h"
#include "lib/tuning/table.h"

using namespace diptych;

namespace {

struct Shape {
  const char* name;
  std::int64_t inputs, outputs;
};
constexpr Shape kShapes[] = {{"q, k and v", 3584, 4608},
                             {"o", 3584, 3584},
                             {"gate and up", 3584, 2 * 18944},
                             {"down", 18944, 3584}};
constexpr std::int64_t kRows[] = {258, 1026, 2048, 8208};

struct Settings {
  int repeats = 10;
  bool biased = false;
  std::string dtype = "bfloat16";
  at::TensorOptions options() const {
    return at::TensorOptions(dtype == "float16" ? at::kHalf : at::kBFloat16).device(at::kCUDA, 0);
  }
};

using Works = std::vector<std::function<void()>>;

double milliseconds(const Works& works, const Settings& settings) {
  return launch_milliseconds(works, settings.repeats, at::Device(at::kCUDA, 0));
}

struct Product {
  LinearOperand x;
  Tensor y;
  std::array<LinearRoute, 2> routes;  // of listed rows: every fourth is of the second set
};

Product make_product(const Shape& shape, std::int64_t rows, Quantization kind,
                     const Settings& settings) {
  const at::TensorOptions options = settings.options();
  Product p;
  const Tensor x = at::randn({rows, shape.inputs}, options);
  p.x = kind == Quantization::fp8 ? quantize_rows(x, kind, KernelPolicy::strict)
                                  : LinearOperand{x, {}};
  p.y = at::empty({rows, shape.outputs}, options);
  const Tensor all = at::arange(rows, options.dtype(at::kLong)), of_second = all.remainder(4) == 3;
  const Tensor lists[] = {all.masked_select(of_second.logical_not()), all.masked_select(of_second)};
  for (std::size_t i = 0; i < p.routes.size(); ++i) {
    const Tensor weight = at::randn({shape.outputs, shape.inputs}, options) * 0.02;
    p.routes[i] = {quantize_rows(weight, kind, KernelPolicy::strict),
                   settings.biased ? at::randn({shape.outputs}, options) : Tensor(),
                   RowSet::list(lists[i])};
  }
  return p;
}

// Of several layers: their weights together exceed the level 2 cache.
std::vector<Product> make_products(const Shape& shape, std::int64_t rows, Quantization kind,
                                   const Settings& settings) {
  constexpr std::int64_t kRotatedBytes = std::int64_t{256} << 20;
  const std::int64_t bytes =
      2 * shape.inputs * shape.outputs * (kind == Quantization::none ? 2 : 1);
  std::vector<Product> products;
  for (std::int64_t i = 0; i < kRotatedBytes / bytes + 2; ++i)
    products.push_back(make_product(shape, rows, kind, settings));
  return products;
}

std::array<LinearRoute, 2> in_ranges(const Product& p) {
  std::array<LinearRoute, 2> routes = p.routes;
  routes[0].rows = RowSet::range(0, p.routes[0].rows.count);
  routes[1].rows = RowSet::range(p.routes[0].rows.count, p.routes[1].rows.count);
  return routes;
}

void gather_and_scatter(const Product& p) {
  for (const LinearRoute& route : p.routes) {
    const auto rows_of = [&](const Tensor& t) { return t.index_select(0, route.rows.index); };
    LinearOperand x = {p.x.values, {}};
    if (p.x.scales.defined()) {
      x = {rows_of(p.x.values.view(at::kByte)).view(at::kFloat8_e4m3fn), rows_of(p.x.scales)};
    } else {
      x.values = rows_of(x.values);
    }
    const Tensor part = at::empty({route.rows.count, p.y.size(1)}, p.y.options());
    linear_into(part, x, route.weight, route.bias, KernelPolicy::strict);
    Tensor(p.y).index_copy_(0, route.rows.index, part);
  }
}

void route(const Product& p, const std::array<LinearRoute, 2>& routes) {
  routed_linear_into(p.y, p.x, routes, KernelPolicy::strict);
}

void run(const Settings& settings) {
  fmt::print("{:<7}{:<13}{:>6}{:>20}{:>20}{:>20}\n", "", "", "rows", "two ranges",
             "gather and scatter", "two lists");
  for (const auto& [kind, name] : {std::pair{Quantization::none, "plain"},
                                   {Quantization::fp8, "fp8"},
                                   {Quantization::int8, "int8"}}) {
    for (const Shape& shape : kShapes) {
      for (const std::int64_t rows : kRows) {
        const std::vector<Product> products = make_products(shape, rows, kind, settings);
        std::array<Works, 3> ways;
        for (const Product& p : products) {
          ways[0].emplace_back([&p, ranges = in_ranges(p)] { route(p, ranges); });
          ways[1].emplace_back([&p] { gather_and_scatter(p); });
          ways[2].emplace_back([&p] { route(p, p.routes); });
        }
        const double flop =
            2 * static_cast<double>(rows) * static_cast<double>(shape.inputs * shape.outputs);
        fmt::print("{:<7}{:<13}{:>6}", name, shape.name, rows);
        for (const Works& works : ways) {
          const double ms = milliseconds(works, settings);
          fmt::print("{:>12.4f}{:>8.0f}", ms, flop / (ms * 1e9));
        }
        fmt::print("\n");
      }
    }
  }
}

// Weights of several layers in turn, too.
void run_gated(const Settings& settings) {
  constexpr std::int64_t kWidth = 3584, kInner = 18944;
  constexpr std::size_t kLayers = 4;
  const at::TensorOptions options = settings.options();
  std::vector<LinearOperand> weights;
  for (std::size_t i = 0; i < kLayers; ++i)
    weights.push_back({at::randn({2 * kInner, kWidth}, options) * 0.02, {}});
  fmt::print("\n{:<20}{:>6}{:>20}{:>20}\n", "gate, up and SiLU", "rows", "two kernels",
             has_gated_kernel(at::Device(at::kCUDA, 0)) ? "one kernel" : "(no kernel here)");
  for (const std::int64_t rows : {256, 512, 1024, 2048, 4096, 8192}) {
    const Tensor x = at::randn({rows, kWidth}, options);
    fmt::print("{:<20}{:>6}", "", rows);
    for (const GatedProduct product : {GatedProduct::two_kernels, GatedProduct::one_kernel}) {
      TuningTable table;
      table.add({TunedKernel::gated_linear,
                 {kInner, kWidth, 0},
                 rows,
                 rows,
                 static_cast<int>(product),
                 {}});
      Works works;
      for (const LinearOperand& weight : weights) {
        works.emplace_back([&, route = LinearRoute{weight, {}, RowSet::range(0, rows)}] {
          routed_gated_linear(x, std::span(&route, 1), {KernelPolicy::strict, &table});
        });
      }
      const double ms = milliseconds(works, settings);
      const double flop = 4 * static_cast<double>(rows) * static_cast<double>(kWidth * kInner);
      fmt::print("{:>12.4f}{:>8.0f}", ms, flop / (ms * 1e9));
    }
    fmt::print("\n");
  }
}

// Weights of several layers in turn, too. The choice is of bfloat16.
void run_int8(const Settings& settings) {
  constexpr std::int64_t kRotatedBytes = std::int64_t{256} << 20;
  constexpr Int8Product kProducts[] = {Int8Product::copy, Int8Product::mixed_64,
                                       Int8Product::mixed_128, Int8Product::mixed_256};
  const at::TensorOptions options = settings.options();
  fmt::print("\n{:<20}{:>6}{:>20}{:>20}{:>20}{:>20}{:>20}\n", "int8", "rows", "plain", "copy",
             "mixed 64", "mixed 128", "mixed 256");
  for (const Shape& shape : kShapes) {
    std::vector<LinearOperand> plain, coded;
    for (std::int64_t i = 0; i < kRotatedBytes / (shape.outputs * shape.inputs) + 2; ++i) {
      plain.push_back({at::randn({shape.outputs, shape.inputs}, options) * 0.02, {}});
      coded.push_back(quantize_rows(plain.back().values, Quantization::int8, KernelPolicy::strict));
    }
    for (const std::int64_t rows : {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
      const Tensor x = at::randn({rows, shape.inputs}, options);
      const Tensor y = at::empty({rows, shape.outputs}, options);
      const Tensor bias = settings.biased ? at::randn({shape.outputs}, options) : Tensor();
      const double flop =
          2 * static_cast<double>(rows) * static_cast<double>(shape.inputs * shape.outputs);
      const auto print = [&](std::span<const LinearOperand> weights, const TuningTable* table) {
        Works works;
        for (const LinearOperand& weight : weights) {
          works.emplace_back([&] {
            linear_into(y, {x, {}}, weight, bias, {KernelPolicy::strict, table});
          });
        }
        const double ms = milliseconds(works, settings);
        fmt::print("{:>12.4f}{:>8.0f}", ms, flop / (ms * 1e9));
      };
      fmt::print("{:<20}{:>6}", shape.name, rows);
      print(plain, nullptr);
      for (const Int8Product product : kProducts) {
        TuningTable table;
        table.add({TunedKernel::linear_int8,
                   {shape.outputs, shape.inputs, 0},
                   rows,
                   rows,
                   static_cast<int>(product),
                   {}});
        print(coded, &table);
      }
      fmt::print("\n");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kNoGpu = 77, kFailed = 3;
  CLI::App app("Times products whose rows two weight sets share out, at BAGEL-7B's sizes");
  Settings settings;
  app.add_option("--repeats", settings.repeats, "measurements, of which the median counts")
      ->check(CLI::PositiveNumber);
  app.add_option("--dtype", settings.dtype, "of rows")
      ->check(CLI::IsMember({"bfloat16", "float16"}))
      ->capture_default_str();
  app.add_flag("--bias", settings.biased, "add one");
  CLI11_PARSE(app, argc, argv);
  if (!at::hasCUDA()) {
    fmt::print(stderr, "skipped: torch sees no CUDA device\n");
    return kNoGpu;
  }
  try {
    const c10::InferenceMode inference;
    run(settings);
    run_gated(settings);
    if (settings.dtype == "bfloat16" && has_mixed_kernel(at::Device(at::kCUDA, 0)))
      run_int8(settings);
  } catch (const std::exception& error) {
    fmt::print(stderr, "products_bench: {}\n", error.what());
    return kFailed;
  }
  return 0;
}

// Products of rows that two weight sets share out, at the sizes of BAGEL-7B: rows in two ranges, as
// the model lays them out, and listed rows, interleaved, which are gathered before and scattered
// behind, or given to the library as they are. Then the first half of a gated layer by two kernels
// and by one. Milliseconds, and TFLOP/s.
#include <algorithm>
#include <array>
#include <functional>

#include <ATen/cuda/CUDAEvent.h>
#include <CLI/CLI.hpp>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include "lib/ops/linear_operand.h"
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

double median_ms(const std::function<void()>& work, int repeats) {
  constexpr int kWarmUp = 3;
  std::vector<float> times;
  for (int i = 0; i < kWarmUp + repeats; ++i) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record();
    work();
    end.record();
    end.synchronize();
    if (i >= kWarmUp) times.push_back(begin.elapsed_time(end));
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return static_cast<double>(times[static_cast<std::size_t>(repeats / 2)]);
}

struct Product {
  LinearOperand x;
  Tensor y;
  std::array<LinearRoute, 2> routes;  // of listed rows: every fourth is of the second set
};

Product make_product(const Shape& shape, std::int64_t rows, Quantization kind,
                     const at::TensorOptions& options) {
  Product p;
  const Tensor x = at::randn({rows, shape.inputs}, options);
  p.x = kind == Quantization::fp8 ? quantize_rows(x, kind, KernelPolicy::strict)
                                  : LinearOperand{x, {}};
  p.y = at::empty({rows, shape.outputs}, options);
  const Tensor all = at::arange(rows, options.dtype(at::kLong)), of_second = all.remainder(4) == 3;
  const Tensor lists[] = {all.masked_select(of_second.logical_not()), all.masked_select(of_second)};
  for (std::size_t i = 0; i < p.routes.size(); ++i) {
    const Tensor weight = at::randn({shape.outputs, shape.inputs}, options) * 0.02;
    p.routes[i] = {quantize_rows(weight, kind, KernelPolicy::strict), {}, RowSet::list(lists[i])};
  }
  return p;
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
    linear_into(part, x, route.weight, {}, KernelPolicy::strict);
    Tensor(p.y).index_copy_(0, route.rows.index, part);
  }
}

void run(int repeats) {
  const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
  fmt::print("{:<7}{:<13}{:>6}{:>20}{:>20}{:>20}\n", "", "", "rows", "two ranges",
             "gather and scatter", "two lists");
  for (const auto& [kind, name] : {std::pair{Quantization::none, "bf16"},
                                   {Quantization::fp8, "fp8"},
                                   {Quantization::int8, "int8"}}) {
    for (const Shape& shape : kShapes) {
      for (const std::int64_t rows : kRows) {
        const Product p = make_product(shape, rows, kind, options);
        const auto ranges = in_ranges(p);
        const double flop =
            2 * static_cast<double>(rows) * static_cast<double>(shape.inputs * shape.outputs);
        fmt::print("{:<7}{:<13}{:>6}", name, shape.name, rows);
        const auto routed = [&](const std::array<LinearRoute, 2>& routes) {
          routed_linear_into(p.y, p.x, routes, KernelPolicy::strict);
        };
        for (const std::function<void()>& work :
             {std::function<void()>([&] { routed(ranges); }),
              std::function<void()>([&] { gather_and_scatter(p); }),
              std::function<void()>([&] { routed(p.routes); })}) {
          const double ms = median_ms(work, repeats);
          fmt::print("{:>12.4f}{:>8.0f}", ms, flop / (ms * 1e9));
        }
        fmt::print("\n");
      }
    }
  }
}

// Weights of several layers in turn, so that none is left in a cache.
void run_gated(int repeats) {
  constexpr std::int64_t kWidth = 3584, kInner = 18944;
  constexpr std::size_t kLayers = 4;
  const auto options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
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
      const auto layers = [&] {
        for (const LinearOperand& weight : weights) {
          const LinearRoute route{weight, {}, RowSet::range(0, rows)};
          routed_gated_linear(x, std::span(&route, 1), {KernelPolicy::strict, &table});
        }
      };
      const double ms = median_ms(layers, repeats) / static_cast<double>(kLayers);
      const double flop = 4 * static_cast<double>(rows) * static_cast<double>(kWidth * kInner);
      fmt::print("{:>12.4f}{:>8.0f}", ms, flop / (ms * 1e9));
    }
    fmt::print("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kNoGpu = 77, kFailed = 3;
  CLI::App app("Times products whose rows two weight sets share out, at BAGEL-7B's sizes");
  int repeats = 10;
  app.add_option("--repeats", repeats, "measurements, of which the median counts")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (!at::hasCUDA()) {
    fmt::print(stderr, "skipped: torch sees no CUDA device\n");
    return kNoGpu;
  }
  try {
    const c10::InferenceMode inference;
    run(repeats);
    run_gated(repeats);
  } catch (const std::exception& error) {
    fmt::print(stderr, "products_bench: {}\n", error.what());
    return kFailed;
  }
  return 0;
}

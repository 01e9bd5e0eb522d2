#include "tests/ops/tuned_cases.h"

#include <cmath>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "lib/ops/linear_operand.h"
#include "lib/tuning/table.h"

namespace diptych::testing {
namespace {

Tensor draw(at::Generator& generator, at::IntArrayRef sizes, double scale = 1) {
  return (at::randn(sizes, generator, at::kFloat) * scale).to(at::kBFloat16);
}

TuningTable table_of(TunedKernel kernel, const TunedShape& shape, std::int64_t rows, int choice) {
  TuningTable table;
  table.add({kernel, shape, rows, rows, choice, {}});
  return table;
}

double largest(const Tensor& values) {
  return values.to(at::kDouble).abs().max().item<double>();
}

void check_products(at::Generator& generator, std::int64_t rows, const TunedShape& shape,
                    Quantization kind, at::Device device, KernelPolicy policy) {
  const auto [outputs, inputs, unused] = shape;
  const Tensor x = draw(generator, {rows, inputs}), bias = draw(generator, {outputs});
  const LinearOperand weight = quantize_rows(
      draw(generator, {outputs, inputs}, 1 / std::sqrt(inputs)), kind, KernelPolicy::reference);
  const Tensor expected = linear(x, weight, bias, KernelPolicy::reference);
  const LinearOperand there = {weight.values.to(device), weight.scales.to(device)};
  const TunedKernel kernel =
      kind == Quantization::fp8 ? TunedKernel::linear_fp8 : TunedKernel::linear_int8;
  const auto choices = info_of(kernel).choices;
  const bool has_mixed = has_mixed_kernel(device);
  Tensor by_copy;
  for (int choice = 0; choice < static_cast<int>(choices.size()); ++choice) {
    if (impossible_choice(kernel, shape, rows, choice)) continue;
    const std::string what = fmt::format("{} rows, {} -> {}, {}", rows, inputs, outputs,
                                         choices[static_cast<std::size_t>(choice)]);
    CAPTURE(what);
    const TuningTable table = table_of(kernel, shape, rows, choice);
    const auto product = [&] {
      return linear(x.to(device), there, bias.to(device), {policy, &table}).cpu();
    };
    const Tensor found = product();
    const bool mixed =
        kind == Quantization::int8 && mixed_shape(static_cast<Int8Product>(choice)).has_value();
    if (mixed) {
      CHECK(at::equal(found, by_copy) == !has_mixed);  // a copy rounds the weights
    } else if (kind == Quantization::int8 && choice == static_cast<int>(Int8Product::copy)) {
      by_copy = found;
    }
    // As without a tuning: roundings that flip, and sums of 14 bits in e4m3; weights of int8 that
    // only one of both rounds.
    const double allowed = 3 * 0x1p-9 + (kind == Quantization::fp8 ? 0x1p-8 : 0x1p-9);
    CHECK(largest(found - expected) <= allowed * largest(expected));
    CHECK(at::equal(found, product()));
  }
}

}  // namespace

void check_tuned_products(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(31);
  for (const TunedShape& shape :
       {TunedShape{288, 224, 0}, TunedShape{288, 4352, 0}, TunedShape{1024, 4352, 0}}) {
    for (const std::int64_t rows : {2, 3, 8, 9, 16, 17, 40, 2200}) {
      if (rows == 2200 && shape[0] != 1024) continue;  // where long sums are cuBLASLt's, too
      for (const Quantization kind : {Quantization::fp8, Quantization::int8})
        check_products(generator, rows, shape, kind, device, policy);
    }
  }
}

void check_tuned_norms(at::Device device, KernelPolicy policy) {
  constexpr double kEps = 1e-6;
  at::Generator generator = at::detail::createCPUGenerator(32);
  for (const std::int64_t width : {64, 3584, 18944}) {
    for (const std::int64_t rows : {1, 17, 300, 1100}) {
      if (rows == 1100 && width != 3584) continue;  // where the kernel may fetch rows ahead
      const Tensor x = draw(generator, {rows, width}), delta = draw(generator, {rows, width}),
                   weight = draw(generator, {width});
      const auto norm = [&](const Tensor& from, Quantization kind, const Kernels& kernels,
                            Tensor& sum) {
        sum = from.clone();
        const NormRoute route{weight.to(from.device()), RowSet::range(0, rows)};
        return add_rms_norm_(sum, delta.to(from.device()), std::span(&route, 1), kEps, kind,
                             kernels);
      };
      Tensor expected_sum, sum;
      const Tensor expected =
          norm(x, Quantization::none, KernelPolicy::reference, expected_sum).values;
      for (int choice = 0; choice < 3; ++choice) {
        CAPTURE(width);
        CAPTURE(rows);
        CAPTURE(choice);
        const TunedShape shape = {width, 0, 0};
        TuningTable table = table_of(TunedKernel::add_rms_norm, shape, rows, choice);
        table.add({TunedKernel::add_rms_norm_e4m3, shape, rows, rows, choice, {}});
        const Kernels kernels(policy, &table);
        const Tensor found = norm(x.to(device), Quantization::none, kernels, sum).values.cpu();
        CHECK(at::equal(sum.cpu(), expected_sum));
        CHECK(at::allclose(found.to(at::kFloat), expected.to(at::kFloat), 0x1p-6, 1e-6));
        const LinearOperand codes = norm(x.to(device), Quantization::fp8, kernels, sum);
        const LinearOperand wanted =
            quantize_rows(found, Quantization::fp8, KernelPolicy::reference);
        CHECK(at::equal(codes.values.cpu().view(at::kByte), wanted.values.view(at::kByte)));
        CHECK(at::equal(codes.scales.cpu(), wanted.scales));
      }
    }
  }
}

void check_tuned_quantising(at::Device device, KernelPolicy policy) {
  at::Generator generator = at::detail::createCPUGenerator(33);
  const auto check = [&](TunedKernel kernel, const Tensor& plain, auto&& work) {
    const std::int64_t rows = plain.size(0), width = plain.size(1);
    const LinearOperand expected = quantize_rows(plain, Quantization::fp8, KernelPolicy::reference);
    for (int choice = 0; choice < static_cast<int>(info_of(kernel).choices.size()); ++choice) {
      CAPTURE(width);
      CAPTURE(rows);
      CAPTURE(choice);
      const TuningTable table = table_of(kernel, {width, 0, 0}, rows, choice);
      const LinearOperand found = work(Kernels(policy, &table));
      CHECK(at::equal(found.values.view(at::kByte), expected.values.view(at::kByte)));
      CHECK(at::equal(found.scales, expected.scales));
    }
  };
  for (const std::int64_t width : {64, 3584, 18944}) {
    for (const std::int64_t rows : {1, 17, 300, 1100}) {
      if (rows == 1100 && width != 3584) continue;
      const Tensor gate_up = draw(generator, {rows, 2 * width}).to(device),
                   x = draw(generator, {rows, width}).to(device);
      check(TunedKernel::silu_mul_e4m3, silu_mul(gate_up, policy),
            [&](const Kernels& kernels) { return silu_mul(gate_up, Quantization::fp8, kernels); });
      check(TunedKernel::quantize_rows, x,
            [&](const Kernels& kernels) { return quantize_rows(x, Quantization::fp8, kernels); });
    }
  }
}

}  // namespace diptych::testing

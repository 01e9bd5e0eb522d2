#include "tests/ops/product_cases.h"

#include <cmath>

#include <doctest/doctest.h>

namespace diptych::testing {

void check_plain_products(at::Device device, KernelPolicy policy, std::int64_t shrink) {
  const std::int64_t hidden = 3584 / shrink, kv = 512 / shrink, inner = 18944 / shrink;
  struct Shape {
    std::int64_t outputs, inputs;
    bool biased;
  };
  // qkv, o, gate and up, down
  const Shape shapes[] = {{hidden + 2 * kv, hidden, true},
                          {hidden, hidden, false},
                          {2 * inner, hidden, false},
                          {hidden, inner, false}};
  const auto options = at::TensorOptions(at::kBFloat16).device(device);
  at::Generator generator = at::detail::createCPUGenerator(31);
  const auto draw = [&](at::IntArrayRef sizes, double scale) {
    return (at::randn(sizes, generator, at::kFloat) * scale).to(options);
  };
  for (const Shape& shape : shapes) {
    const double unit = 1 / std::sqrt(static_cast<double>(shape.inputs));
    const LinearOperand weight = {draw({shape.outputs, shape.inputs}, unit), {}};
    const Tensor bias = shape.biased ? draw({shape.outputs}, 0.1) : Tensor();
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{3}, std::int64_t{17},
                                    1026 / shrink, 2048 / shrink, 8208 / shrink}) {
      CAPTURE(shape.outputs);
      CAPTURE(shape.inputs);
      CAPTURE(rows);
      const Tensor x = draw({rows, shape.inputs}, 1);
      const Tensor found = linear(x, weight, bias, policy).to(at::kDouble);
      Tensor wanted = at::mm(x.to(at::kDouble), weight.values.to(at::kDouble).t());
      if (bias.defined()) wanted.add_(bias.to(at::kDouble));
      const double cosine =
          ((found * wanted).sum() / (found.norm() * wanted.norm())).item<double>();
      CHECK(cosine >= 0.99999);
      CHECK((found - wanted).abs().max().item<double>() <= 3.2e-2);
    }
  }
}

}  // namespace diptych::testing

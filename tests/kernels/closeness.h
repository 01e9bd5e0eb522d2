// How close a kernel or ATen must come to a kernel's reference, and inputs to try it on.
#pragma once

#include <string>

#include <doctest/doctest.h>

#include "tests/kernels/kernel_dtype.h"

namespace diptych::testing {

// 16-bit floats as integers in the order of their values; neighbours differ by one, -0 equals 0.
inline Tensor ordered_bits(const Tensor& t) {
  const Tensor bits = t.contiguous().view(at::kShort).to(at::kInt);
  return at::where(bits < 0, -bits.bitwise_and(0x7fff), bits);
}

inline std::int64_t count(const Tensor& mask) {
  return mask.sum().item<std::int64_t>();
}

// float32: 1e-6 relative. 16 bit: the statistics agree to 1e-7 or so, so few values (one in 1000,
// and a fiftieth of one row: all values of one mantissa where its product with the row's scale is
// nearly a tie) fall to the other side of a rounding, and then by `ulps` at most: one for a single
// rounding, two where a rounded value is multiplied and rounded again.
inline void check_close(const Tensor& actual, const Tensor& expected, int ulps,
                        const std::string& what) {
  CAPTURE(what);
  REQUIRE((actual.sizes() == expected.sizes()));
  REQUIRE((actual.scalar_type() == expected.scalar_type()));
  const Tensor a = actual.cpu(), e = expected.cpu();
  if (e.scalar_type() == at::kFloat) {
    const Tensor near = (a - e).abs() <= e.abs() * 1e-6 + 1e-30;
    CHECK(count(near.logical_or(a == e).logical_not()) == 0);
  } else {
    const Tensor apart = (ordered_bits(a) - ordered_bits(e)).abs();
    CHECK(count(apart > ulps) == 0);
    CHECK(count(apart > 0) <= e.numel() / 1000 + e.size(-1) / 50 + 2);
  }
  if (e.numel() > 16) CHECK(e.to(at::kFloat).abs().max().item<float>() > 0.05F);  // not trivial
}

// [..., head_dim] after a half-split rotation: a flip of a factor's rounding is passed on to both
// halves, so the bound is relative to the pair's length. Two ulps: one of each factor's roundings.
inline void check_rotated(const Tensor& actual, const Tensor& expected, const std::string& what) {
  CAPTURE(what);
  REQUIRE((actual.sizes() == expected.sizes()));
  REQUIRE((actual.scalar_type() == expected.scalar_type()));
  const at::ScalarType dtype = expected.scalar_type();
  const std::int64_t half = expected.size(-1) / 2;
  const double bound = dtype == at::kFloat ? 1e-6 : dtype == at::kBFloat16 ? 0x1p-6 : 0x1p-9;
  const Tensor a = actual.cpu().to(at::kFloat), e = expected.cpu().to(at::kFloat);
  const Tensor length = at::hypot(e.narrow(-1, 0, half), e.narrow(-1, half, half));
  const Tensor near = (a - e).abs() <= at::cat({length, length}, -1) * bound;
  CHECK(count(near.logical_not()) == 0);
  if (dtype != at::kFloat) CHECK(count(a != e) <= e.numel() / 100 + 4);
  if (e.numel() > 16) CHECK(e.abs().max().item<float>() > 0.05F);
}

// How rows lie in memory: one behind the other, with a gap that keeps 16-byte vectors, or with a
// start and a gap that do not.
enum class Layout { packed, spaced, crooked };
inline constexpr Layout kLayouts[] = {Layout::packed, Layout::spaced, Layout::crooked};

// Columns before and after a row of this layout.
inline std::int64_t before(Layout layout) {
  return layout == Layout::crooked ? 1 : 0;
}
inline std::int64_t gap(Layout layout) {
  return layout == Layout::packed ? 0 : layout == Layout::spaced ? 16 : 3;
}

// Normal random numbers times `scale`, [rows, width] of the layout.
inline Tensor random_rows(at::Generator& generator, std::int64_t rows, std::int64_t width,
                          double scale, Layout layout, const at::TensorOptions& options) {
  const Tensor base = at::randn({rows, width + gap(layout)}, generator, at::kFloat) * scale;
  return base.to(c10::typeMetaToScalarType(options.dtype()))
      .to(options.device())
      .narrow(1, before(layout), width);
}

}  // namespace diptych::testing

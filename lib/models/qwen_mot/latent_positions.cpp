#include "lib/models/qwen_mot/latent_positions.h"

#include <ATen/ATen.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

// Sines, then cosines of the coordinates 0 .. count - 1 -> float32 [count, width].
Tensor sines_and_cosines(std::int64_t count, std::int64_t width) {
  const std::int64_t half = width / 2;
  const auto exact = at::TensorOptions(at::kDouble);
  const Tensor exponents = at::arange(half, exact) / static_cast<double>(half);
  const Tensor frequencies = at::reciprocal(at::pow(10000.0, exponents));
  const Tensor angles = at::outer(at::arange(count, exact), frequencies);
  return at::cat({angles.sin(), angles.cos()}, 1).to(at::kFloat);
}

}  // namespace

Tensor LatentTable::indices(std::int64_t t, std::int64_t h, std::int64_t w) const {
  const auto axis = [](std::int64_t size, std::int64_t step) {
    return at::arange(size, at::kLong) * step;
  };
  const std::int64_t last = ((t - 1) * side + h - 1) * side + w - 1;
  if (last >= frames * side * side) {
    throw InputError(
        "{} latent frames of {}x{} rows, the table of positions has {} frames of {}x{}", t, h, w,
        frames, side, side);
  }
  return (axis(t, side * side).view({t, 1, 1}) + axis(h, side).view({1, h, 1}) +
          axis(w, 1).view({1, 1, w}))
      .flatten();
}

Tensor LatentTable::rows(std::int64_t t, std::int64_t h, std::int64_t w,
                         std::int64_t hidden) const {
  TORCH_CHECK(hidden >= 12 && hidden % 2 == 0, "[latent_table] hidden is ", hidden);
  const Tensor index = indices(t, h, w);
  const std::int64_t part = hidden / 3 / 2 * 2;  // of the frame and of the row, an even width
  const auto along = [&](std::int64_t count, std::int64_t width, const Tensor& coordinate) {
    return sines_and_cosines(count, width).index_select(0, coordinate);
  };
  const auto quotient = [](const Tensor& number, std::int64_t by) {
    return at::floor_divide(number, by);
  };
  return at::cat({along(frames, part, quotient(index, side * side)),
                  along(side, part, at::remainder(quotient(index, side), side)),
                  along(side, hidden - 2 * part, at::remainder(index, side))},
                 1);
}

}  // namespace diptych

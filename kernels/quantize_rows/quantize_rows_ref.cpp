#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/host_quantize.h"
#include "kernels/quantize_rows/quantize_rows.h"

namespace diptych::kernels {
namespace {

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      break;
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_tanh:  // as the device's (kernels/device_gelu.cuh)
      return x / (1 + std::exp(-1.5957691216057308 * x * (1 + 0.044715 * x * x)));
  }
  return x;
}

}  // namespace

void quantize_rows_ref(const QuantizeRowsArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    std::vector<T> row_of(static_cast<std::size_t>(args.width));
    with_host_stored(args.stored, [&](auto stored) {
      const auto* x = static_cast<const T*>(args.x);
      auto* values = static_cast<decltype(stored)*>(args.values);
      for (std::int64_t row = 0; row < args.rows; ++row) {
        const T* from = x + row * args.x_stride;
        for (std::size_t i = 0; i < row_of.size(); ++i)
          row_of[i] = round_to<T>(static_cast<float>(activated(args.activation, widen(from[i]))));
        args.scales[row] = quantize_row(row_of.data(), args.width, stored_limit(args.stored),
                                        values + row * args.width);
      }
    });
  });
}

}  // namespace diptych::kernels

#include <cmath>
#include <vector>

#include "kernels/host_quantize.h"
#include "kernels/quantize_rows/quantize_rows.h"

namespace diptych::kernels {
namespace {

float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::none:
      break;
    case Activation::gelu:
      return 0.5F * x * (1 + std::erf(x * 0.70710678F));
    case Activation::gelu_tanh:  // as the device's (kernels/device_gelu.cuh)
      return x / (1 + std::exp(-1.5957691216F * x * (1 + 0.044715F * x * x)));
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
          row_of[i] = round_to<T>(activated(args.activation, widen(from[i])));
        args.scales[row] = quantize_row(row_of.data(), args.width, stored_limit(args.stored),
                                        values + row * args.width);
      }
    });
  });
}

}  // namespace diptych::kernels

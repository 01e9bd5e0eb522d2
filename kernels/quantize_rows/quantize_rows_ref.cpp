#include "kernels/host_quantize.h"
#include "kernels/quantize_rows/quantize_rows.h"

namespace diptych::kernels {

void quantize_rows_ref(const QuantizeRowsArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    with_host_stored(args.stored, [&](auto stored) {
      const auto* x = static_cast<const decltype(type)*>(args.x);
      auto* values = static_cast<decltype(stored)*>(args.values);
      for (std::int64_t row = 0; row < args.rows; ++row) {
        args.scales[row] = quantize_row(x + row * args.x_stride, args.width,
                                        stored_limit(args.stored), values + row * args.width);
      }
    });
  });
}

}  // namespace diptych::kernels

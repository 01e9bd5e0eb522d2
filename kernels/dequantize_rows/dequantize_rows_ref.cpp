#include "kernels/dequantize_rows/dequantize_rows.h"
#include "kernels/host_float.h"

namespace diptych::kernels {

void dequantize_rows_ref(const DequantizeRowsArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    T* y = static_cast<T*>(args.y);
    for (std::int64_t i = 0; i < args.rows * args.width; ++i) {
      y[i] = round_to<T>(widen(args.values[i]) * args.scales[i / args.width]);
    }
  });
}

}  // namespace diptych::kernels

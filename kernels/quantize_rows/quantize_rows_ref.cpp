#include "kernels/host_float.h"
#include "kernels/quantize_rows/quantize_rows.h"

namespace diptych::kernels {
namespace {

template <typename T, typename Q>
void quantize_row(const QuantizeRowsArgs& args, std::int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  Q* values = static_cast<Q*>(args.values) + row * args.width;
  float most = 0;
  for (std::int64_t i = 0; i < args.width; ++i) {
    const float size = std::abs(widen(x[i]));
    if (!(size <= most)) most = size;  // a NaN, too, and then it stays
    if (std::isnan(most)) break;
  }
  float scale = most / stored_limit(args.stored);
  if (scale < std::numeric_limits<float>::min()) scale = std::numeric_limits<float>::min();
  args.scales[row] = scale;
  const float inverse = 1 / scale;
  for (std::int64_t i = 0; i < args.width; ++i) values[i] = round_to<Q>(widen(x[i]) * inverse);
}

}  // namespace

void quantize_rows_ref(const QuantizeRowsArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    with_host_stored(args.stored, [&](auto stored) {
      for (std::int64_t row = 0; row < args.rows; ++row) {
        quantize_row<decltype(type), decltype(stored)>(args, row);
      }
    });
  });
}

}  // namespace diptych::kernels

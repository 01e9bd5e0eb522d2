#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/host_float.h"
#include "kernels/rms_norm_silu/rms_norm_silu.h"

namespace diptych::kernels {
namespace {

template <typename T, typename P>
void norm_row(const RmsNormSiluArgs& args, std::int64_t row) {
  const std::int64_t first = row * args.width;
  std::vector<float> sums(static_cast<std::size_t>(args.width));
  double squares = 0;
  for (std::int64_t i = 0; i < args.width; ++i) {
    float sum = args.x == nullptr ? 0 : widen(static_cast<const T*>(args.x)[first + i]);
    for (int part = 0; part < args.part_count; ++part)
      sum += widen(static_cast<const P*>(args.parts[part])[first + i]);
    const T stored = round_to<T>(sum);
    if (args.sum != nullptr) static_cast<T*>(args.sum)[first + i] = stored;
    const float value = sums[static_cast<std::size_t>(i)] = widen(stored);
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  if (args.y == nullptr) return;
  P* y = static_cast<P*>(args.y) + row / args.frame_rows * args.y_frame_stride +
         row % args.frame_rows * args.width;
  const double mean = squares / static_cast<double>(args.width);
  const auto scale = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(args.eps)));
  for (std::int64_t i = 0; i < args.width; ++i) {
    float value = sums[static_cast<std::size_t>(i)];
    if (args.weight != nullptr) {
      value = value * scale * widen(static_cast<const T*>(args.weight)[i]);
      value = value / (1 + std::exp(-value));
    }
    y[i] = round_to<P>(value);
  }
}

}  // namespace

void rms_norm_silu_ref(const RmsNormSiluArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    with_host_type(args.part_dtype, [&](auto part) {
      for (std::int64_t row = 0; row < args.rows; ++row)
        norm_row<decltype(type), decltype(part)>(args, row);
    });
  });
}

}  // namespace diptych::kernels

#include <cmath>

#include "kernels/host_float.h"
#include "kernels/rms_norm/rms_norm.h"

namespace diptych::kernels {
namespace {

template <typename T>
void norm_row(const RmsNormArgs& args, std::int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
  if (args.delta != nullptr) {
    const T* delta = static_cast<const T*>(args.delta) + row * args.delta_stride;
    T* sum = static_cast<T*>(args.sum) + row * args.sum_stride;
    for (std::int64_t i = 0; i < args.width; ++i) {
      sum[i] = round_to<T>(widen(x[i]) + widen(delta[i]));
    }
    x = sum;
  }
  double squares = 0;
  for (std::int64_t i = 0; i < args.width; ++i) {
    squares += static_cast<double>(widen(x[i])) * static_cast<double>(widen(x[i]));
  }
  const double mean = squares / static_cast<double>(args.width);
  const auto scale = static_cast<float>(1 / std::sqrt(mean + static_cast<double>(args.eps)));
  for (std::int64_t i = 0; i < args.width; ++i) {
    y[i] = round_to<T>(rounded<T>(widen(x[i]) * scale) * widen(weight[i]));
  }
}

}  // namespace

void rms_norm_ref(const RmsNormArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    for (std::int64_t row = 0; row < args.rows; ++row) norm_row<decltype(type)>(args, row);
  });
}

}  // namespace diptych::kernels

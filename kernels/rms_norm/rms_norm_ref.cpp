#include <cmath>
#include <vector>

#include "kernels/host_quantize.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/row_sets.h"

namespace diptych::kernels {
namespace {

template <typename T>
void norm_row(const RmsNormArgs& args, const T* weight, std::int64_t row, T* y) {
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
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

template <typename T>
void norm_set(const RmsNormArgs& args, const RmsNormArgs::Set& set) {
  const T* weight = static_cast<const T*>(set.weight);
  std::vector<T> wide(args.scales == nullptr ? 0 : static_cast<std::size_t>(args.width));
  for_rows(set.rows, args.rows, [&](std::int64_t row) {
    if (args.scales == nullptr) {
      norm_row<T>(args, weight, row, static_cast<T*>(args.y) + row * args.y_stride);
      return;
    }
    norm_row<T>(args, weight, row, wide.data());
    HostE4m3* codes = static_cast<HostE4m3*>(args.y) + row * args.y_stride;
    args.scales[row] = quantize_row(wide.data(), args.width, stored_limit(Stored::e4m3), codes);
  });
}

}  // namespace

void rms_norm_ref(const RmsNormArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    for (const RmsNormArgs::Set& set : args.sets) norm_set<decltype(type)>(args, set);
  });
}

}  // namespace diptych::kernels

#include <cmath>
#include <vector>

#include "kernels/host_quantize.h"
#include "kernels/layer_norm/layer_norm.h"

namespace diptych::kernels {
namespace {

const float* row_of(const LayerNormArgs::Table& table, const LayerNormArgs::Groups& groups,
                    std::int64_t row) {
  return table.rows + (groups.of_row == nullptr ? 0 : groups.of_row[row]) * table.stride;
}

// x's row, or that of the sum, which it stores.
template <typename T>
const T* summed_row(const LayerNormArgs& args, std::int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  if (args.delta == nullptr) return x;
  const T* delta = static_cast<const T*>(args.delta) + row * args.delta_stride;
  T* sum = static_cast<T*>(args.sum) + row * args.sum_stride;
  const float* gate =
      args.gate.rows == nullptr ? nullptr : row_of(args.gate, args.gate_groups, row);
  for (std::int64_t i = 0; i < args.width; ++i) {
    const float product = gate == nullptr ? widen(delta[i]) : widen(delta[i]) * gate[i];
    sum[i] = round_to<T>(widen(x[i]) + product);
  }
  return sum;
}

template <typename T>
void norm_row(const LayerNormArgs& args, const T* x, std::int64_t row, T* y) {
  const auto width = static_cast<double>(args.width);
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < args.width; ++i) sum += static_cast<double>(widen(x[i]));
  const double mean = sum / width;
  for (std::int64_t i = 0; i < args.width; ++i) {
    const double apart = static_cast<double>(widen(x[i])) - mean;
    squares += apart * apart;
  }
  const double scale = 1 / std::sqrt(squares / width + static_cast<double>(args.eps));
  const float *factor = row_of(args.factor, args.groups, row),
              *offset = row_of(args.offset, args.groups, row);
  for (std::int64_t i = 0; i < args.width; ++i) {
    const auto unit = static_cast<float>((static_cast<double>(widen(x[i])) - mean) * scale);
    y[i] = round_to<T>(unit * (args.base + factor[i]) + offset[i]);
  }
}

template <typename T>
void norm_rows(const LayerNormArgs& args) {
  std::vector<T> wide(args.scales == nullptr ? 0 : static_cast<std::size_t>(args.width));
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const T* x = summed_row<T>(args, row);
    if (args.y == nullptr) continue;
    if (args.scales == nullptr) {
      norm_row<T>(args, x, row, static_cast<T*>(args.y) + row * args.y_stride);
      continue;
    }
    norm_row<T>(args, x, row, wide.data());
    HostE4m3* codes = static_cast<HostE4m3*>(args.y) + row * args.y_stride;
    args.scales[row] = quantize_row(wide.data(), args.width, stored_limit(Stored::e4m3), codes);
  }
}

}  // namespace

void layer_norm_ref(const LayerNormArgs& args) {
  with_host_type(args.dtype, [&](auto type) { norm_rows<decltype(type)>(args); });
}

}  // namespace diptych::kernels

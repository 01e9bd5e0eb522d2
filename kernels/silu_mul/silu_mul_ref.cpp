#include <cmath>
#include <vector>

#include "kernels/host_quantize.h"
#include "kernels/silu_mul/silu_mul.h"

namespace diptych::kernels {
namespace {

template <typename T>
void silu_row(const SiluMulArgs& args, std::int64_t row, T* y) {
  const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
  const T* up = gate + args.inner;
  for (std::int64_t i = 0; i < args.inner; ++i) {
    const float x = widen(gate[i]);
    const float silu =
        x / (1 + std::exp(-x));  // in float32: exp overflows and silu is -0 below -88.7
    y[i] = round_to<T>(rounded<T>(silu) * widen(up[i]));
  }
}

template <typename T>
void silu_rows(const SiluMulArgs& args) {
  std::vector<T> wide(args.scales == nullptr ? 0 : static_cast<std::size_t>(args.inner));
  for (std::int64_t row = 0; row < args.rows; ++row) {
    if (args.scales == nullptr) {
      silu_row<T>(args, row, static_cast<T*>(args.y) + row * args.y_stride);
      continue;
    }
    silu_row<T>(args, row, wide.data());
    HostE4m3* codes = static_cast<HostE4m3*>(args.y) + row * args.y_stride;
    args.scales[row] = quantize_row(wide.data(), args.inner, stored_limit(Stored::e4m3), codes);
  }
}

}  // namespace

void silu_mul_ref(const SiluMulArgs& args) {
  with_host_type(args.dtype, [&](auto type) { silu_rows<decltype(type)>(args); });
}

}  // namespace diptych::kernels

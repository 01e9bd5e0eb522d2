#include <cmath>

#include "kernels/host_float.h"
#include "kernels/silu_mul/silu_mul.h"

namespace diptych::kernels {
namespace {

template <typename T>
void silu_row(const SiluMulArgs& args, std::int64_t row) {
  const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
  const T* up = gate + args.inner;
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
  for (std::int64_t i = 0; i < args.inner; ++i) {
    const float x = widen(gate[i]);
    const float silu =
        x / (1 + std::exp(-x));  // in float32: exp overflows and silu is -0 below -88.7
    y[i] = round_to<T>(rounded<T>(silu) * widen(up[i]));
  }
}

}  // namespace

void silu_mul_ref(const SiluMulArgs& args) {
  with_host_type(args.dtype, [&](auto type) {
    for (std::int64_t row = 0; row < args.rows; ++row) silu_row<decltype(type)>(args, row);
  });
}

}  // namespace diptych::kernels

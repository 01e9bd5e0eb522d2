// silu on device vectors, rounded to their type.
#pragma once

#include <type_traits>

#include "kernels/device_vector.cuh"

namespace diptych::kernels {

// x / (1 + exp(-x)) where -64 <= x <= 64, with both functions of the hardware: each some float32
// steps off, which rounding to bfloat16 hides (tests: every gate). The exact ones take three times
// the instructions, and beside fp8 products, which leave little power to the clock, those take
// longer than the memory.
__device__ __forceinline__ float near_silu(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(x, -1.44269504f)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fadd_rn(1.0f, power)));
  return __fmul_rn(x, inverse);
}

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> silu(const Vector<T, kCount>& gate) {
  float x[kCount], result[kCount];
  bool near = std::is_same_v<T, __nv_bfloat16>;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    x[i] = widen(gate.at[i]);
    near = near && !(fabsf(x[i]) > 64.0f);  // a NaN stays one
  }
  if (near) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) result[i] = near_silu(x[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) result[i] = x[i] / (1.0f + expf(-x[i]));
  }
  return round_all<T, kCount>(result);
}

}  // namespace diptych::kernels

// GELU on device vectors, rounded to their type.
#pragma once

#include <type_traits>

#include "kernels/device_vector.cuh"
#include "kernels/quantize_rows/quantize_rows.h"

namespace diptych::kernels {

// 0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3), is x / (1 + exp(-2 u)), which loses no
// digits where tanh comes near -1. For bfloat16 by both functions of the hardware, as near_silu().
template <bool kNear>
__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kTwice = 1.5957691216f, kCube = 0.044715f;  // 2 sqrt(2 / pi)
  const float twice = kTwice * x * (1.0f + kCube * x * x);
  if constexpr (!kNear) return x / (1.0f + expf(-twice));
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(twice * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}

__device__ __forceinline__ float gelu(float x) {
  constexpr float kRootOfHalf = 0.70710678f;
  return 0.5f * x * (1.0f + erff(x * kRootOfHalf));
}

template <Activation kActivation, typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> activated(const Vector<T, kCount>& x) {
  if constexpr (kActivation == Activation::none) {
    return x;
  } else {
    float results[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float value = widen(x.at[i]);
      if constexpr (kActivation == Activation::gelu) {
        results[i] = gelu(value);
      } else {
        results[i] = gelu_tanh<std::is_same_v<T, __nv_bfloat16>>(value);
      }
    }
    return round_all<T, kCount>(results);
  }
}

}  // namespace diptych::kernels

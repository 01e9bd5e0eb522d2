// Row-wise e4m3 on the device (e4m3.h).
#pragma once

#include <cuda_fp8.h>

#include "kernels/device_vector.cuh"
#include "kernels/e4m3.h"

namespace diptych::kernels {

template <typename T, int kCount>
__device__ __forceinline__ float most_of(float most, const Vector<T, kCount>& value) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) most = fmaxf(most, fabsf(widen(value.at[i])));
  return most;
}

__device__ __forceinline__ float scale_of_row(float most) {
  return fmaxf(__fdiv_rn(most, kMostE4m3), kLeastRowScale);
}

// inverse: 1 / scale
template <typename T, int kCount>
__device__ __forceinline__ void store_e4m3(std::uint8_t* to, const Vector<T, kCount>& value,
                                           float inverse) {
  const auto scaled = [&](int i) { return __fmul_rn(widen(value.at[i]), inverse); };
  if constexpr (kCount == 1) {
    *to = __nv_cvt_float_to_fp8(scaled(0), __NV_SATFINITE, __NV_E4M3);
  } else {  // in pairs, the first in the lower byte
    Vector<std::uint16_t, kCount / 2> codes;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float2 pair = make_float2(scaled(2 * i), scaled(2 * i + 1));
      codes.at[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    }
    store<std::uint16_t, kCount / 2>(reinterpret_cast<std::uint16_t*>(to), codes);
  }
}

}  // namespace diptych::kernels

// Rows as one-byte elements (quantize_rows/quantize_rows.h) on the device, in two passes over a
// row: its largest magnitude, then its elements.
#pragma once

#include <cfloat>
#include <type_traits>

#include "kernels/device_vector.cuh"

namespace diptych::kernels {

inline constexpr float kE4m3Limit = stored_limit(Stored::e4m3);

// Magnitudes as integers keep their order, with infinity and NaN above all numbers.
template <typename T, int kCount>
__device__ __forceinline__ unsigned most_of(unsigned most, const Vector<T, kCount>& value) {
  const auto bits = [](auto element) { return __float_as_uint(widen(element)) & 0x7fffffffu; };
  if constexpr (kInPairs<T, kCount>) {
    const auto* pairs = reinterpret_cast<const typename PairOf<T>::Type*>(value.at);
    auto both = __habs2(pairs[0]);
#pragma unroll
    for (int i = 1; i < kCount / 2; ++i) both = __hmax2_nan(both, __habs2(pairs[i]));
    return max(most, max(bits(both.x), bits(both.y)));
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) most = max(most, bits(value.at[i]));
    return most;
  }
}

// `most`: this thread's part of the row, which all of the row's threads join (join_row). `limit`:
// stored_limit of what is written; `turn`: as join_row.
__device__ __forceinline__ float scale_of_row(unsigned most, float limit, int turn = 0) {
  const float scale = __fdiv_rn(__uint_as_float(join_row<Most>(most, turn)), limit);
  return scale < FLT_MIN ? FLT_MIN : scale;  // a NaN stays
}

// inverse: 1 / scale, rounded to nearest
template <typename T, typename Q, int kCount>
__device__ __forceinline__ void store_quantized(Q* to, const Vector<T, kCount>& value,
                                                float inverse) {
  const auto scaled = [&](int i) { return __fmul_rn(widen(value.at[i]), inverse); };
  if constexpr (std::is_same_v<Q, __nv_fp8_e4m3> && kCount > 1) {
    // There is an instruction for two, the first in the lower byte.
    Vector<std::uint16_t, kCount / 2> pairs;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float2 pair = make_float2(scaled(2 * i), scaled(2 * i + 1));
      pairs.at[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    }
    store<std::uint16_t, kCount / 2>(reinterpret_cast<std::uint16_t*>(to), pairs);
  } else {
    Vector<Q, kCount> quantized;
#pragma unroll
    for (int i = 0; i < kCount; ++i) quantized.at[i] = round_to<Q>(scaled(i));
    store<Q, kCount>(to, quantized);
  }
}

}  // namespace diptych::kernels

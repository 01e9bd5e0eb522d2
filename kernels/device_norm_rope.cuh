// A head's norm and rotation by the lanes that share it (qk_norm_rope.h has the formulas).
#pragma once

#include "kernels/device_vector.cuh"

namespace diptych::kernels {

// The two halves of a head that one lane holds: kItems vectors of kCount elements each.
template <typename T, int kCount>
struct Halves {
  // 16-byte vectors cover half a head of 256 with 32 lanes; single elements need 4 each.
  static constexpr int kItems = kCount == 1 ? 4 : 1;
  Vector<T, kCount> low[kItems], high[kItems];
};

// What they are multiplied with.
template <typename T, int kCount>
struct Factors {
  static constexpr int kItems = Halves<T, kCount>::kItems;
  Vector<T, kCount> low[kItems], high[kItems];  // the norm's weights
  Vector<float, kCount> cos[kItems], sin[kItems];
};

struct Geometry {
  int lane, lanes, half;
};

template <typename T, int kCount, typename Body>
__device__ __forceinline__ void for_items(const Geometry& g, const Body& body) {
#pragma unroll
  for (int i = 0; i < Halves<T, kCount>::kItems; ++i) {
    const int at = (g.lane + i * g.lanes) * kCount;
    if (at < g.half) body(i, at);
  }
}

template <typename T, bool kEveryStep>
__device__ __forceinline__ float step(float value) {
  if constexpr (kEveryStep) return rounded<T>(value);
  return value;
}

// The _rn products and sums keep the compiler from fusing them: one rounding each, as the
// reference.
template <typename T, int kCount, bool kEveryStep>
__device__ __forceinline__ void norm_and_rotate(Halves<T, kCount>& x, const Geometry& g,
                                                const Factors<T, kCount>& factors, float scale) {
  for_items<T, kCount>(g, [&](int i, int) {
    const Vector<float, kCount>&c = factors.cos[i], &s = factors.sin[i];
    const auto normed = [&](T value, T w) {
      const float unit = step<T, kEveryStep>(__fmul_rn(widen(value), scale));
      return step<T, kEveryStep>(__fmul_rn(unit, widen(w)));
    };
    const auto product = [](float a, float b) { return step<T, kEveryStep>(__fmul_rn(a, b)); };
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float low = normed(x.low[i].at[j], factors.low[i].at[j]);
      const float high = normed(x.high[i].at[j], factors.high[i].at[j]);
      x.low[i].at[j] = round_to<T>(__fsub_rn(product(low, c.at[j]), product(high, s.at[j])));
      x.high[i].at[j] = round_to<T>(__fadd_rn(product(high, c.at[j]), product(low, s.at[j])));
    }
  });
}

template <typename T, int kCount>
__device__ __forceinline__ float sum_squares(const Halves<T, kCount>& x, const Geometry& g) {
  float squares = 0;
  for_items<T, kCount>(g, [&](int i, int) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float low = widen(x.low[i].at[j]), high = widen(x.high[i].at[j]);
      squares += low * low + high * high;
    }
  });
  return squares;
}

}  // namespace diptych::kernels

// How the threads of a row walk over it and write what they made of it, plain or as e4m3.
#pragma once

#include "kernels/device_quantize.cuh"

namespace diptych::kernels {

// What a thread does to its vectors of a row: all at once where it holds them, else (kHeld 0) one
// by one. Body: body(held, at), `held` the vector's place in registers.
template <int kCount, int kHeld>
struct Walk {
  std::int64_t first, step, width;

  template <typename Body>
  __device__ __forceinline__ void operator()(const Body& body) const {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const std::int64_t at = first + i * step;
        if (at < width) body(i, at);
      }
    } else {
      for (std::int64_t at = first; at < width; at += step) body(0, at);
    }
  }
};

// Where a row is written.
struct RowOut {
  void* y;       // the row
  float* scale;  // of a quantised one
};

// value_at(i, at): the vector at `at`, whose place in registers is `i`. `held` is overwritten.
template <typename T, int kCount, int kHeld, bool kQuantised, int kPlaces, typename Value>
__device__ __forceinline__ void write_row(const RowOut& out, const Walk<kCount, kHeld>& walk,
                                          Vector<T, kCount> (&held)[kPlaces], const Value& value_at,
                                          int turn) {
  if constexpr (!kQuantised) {
    T* y = static_cast<T*>(out.y);
    walk([&](int i, std::int64_t at) { store<T, kCount>(y + at, value_at(i, at)); });
  } else {
    __nv_fp8_e4m3* y = static_cast<__nv_fp8_e4m3*>(out.y);
    unsigned most = 0;
    walk([&](int i, std::int64_t at) {
      held[i] = value_at(i, at);
      most = most_of(most, held[i]);
    });
    const float row_scale = scale_of_row(most, kE4m3Limit, turn);
    const float inverse = __frcp_rn(row_scale);
    walk([&](int i, std::int64_t at) {
      if constexpr (kHeld == 0) held[i] = value_at(i, at);
      store_quantized(y + at, held[i], inverse);
    });
    if (threadIdx.x == 0) *out.scale = row_scale;
  }
}

}  // namespace diptych::kernels

// Device helpers of the memory-bound kernels: 16-byte vectors, rounding to the storage type, sums
// and maxima over the threads of a row.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr std::int64_t kVectorBytes = 16;
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// kCount elements, read and written in accesses of up to 16 bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < kVectorBytes ? sizeof(T) * kCount : kVectorBytes) Vector {
  T at[kCount];
};

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Vector<T, kCount>*>(from);
}
__device__ __forceinline__ void store_words(void* to, const uint4& words) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(words.x), "r"(words.y), "r"(words.z),
                 "r"(words.w)
               : "memory");
}
__device__ __forceinline__ void store_words(void* to, const uint2& words) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(words.x), "r"(words.y)
               : "memory");
}
// To device memory. Written out: the compiler would store what was made of pairs of elements a pair
// at a time.
template <typename T, int kCount>
__device__ __forceinline__ void store(T* to, const Vector<T, kCount>& value) {
  constexpr int kBytes = sizeof(value);
  if constexpr (kBytes % sizeof(uint4) == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / static_cast<int>(sizeof(uint4)); ++i) {
      store_words(reinterpret_cast<uint4*>(to) + i, reinterpret_cast<const uint4*>(value.at)[i]);
    }
  } else if constexpr (kBytes == sizeof(uint2)) {
    store_words(to, *reinterpret_cast<const uint2*>(value.at));
  } else {
    *reinterpret_cast<Vector<T, kCount>*>(to) = value;
  }
}

__device__ __forceinline__ float widen(float value) {
  return value;
}
__device__ __forceinline__ float widen(__nv_bfloat16 value) {
  return __bfloat162float(value);
}
__device__ __forceinline__ float widen(__half value) {
  return __half2float(value);
}

__device__ __forceinline__ float widen(__nv_fp8_e4m3 value) {
  return static_cast<float>(value);
}
// By the bits of 2^23 + 128 + value, as NVIDIA/FasterTransformer's cutlass_extensions
// (interleaved_numeric_conversion.h) does: conversions of integers are slow.
__device__ __forceinline__ float widen(std::int8_t value) {
  const unsigned biased = static_cast<std::uint8_t>(value) ^ 0x80u;
  return __uint_as_float(0x4b000000u | biased) - 8388736.0f;
}

template <typename T>
__device__ __forceinline__ T round_to(float value);
template <>
__device__ __forceinline__ float round_to<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 round_to<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half round_to<__half>(float value) {
  return __float2half_rn(value);
}

template <>
__device__ __forceinline__ __nv_fp8_e4m3 round_to<__nv_fp8_e4m3>(float value) {
  return __nv_fp8_e4m3(value);  // saturates at 448, NaN stays NaN
}
template <>
__device__ __forceinline__ std::int8_t round_to<std::int8_t>(float value) {
  if (isnan(value)) return 0;
  return static_cast<std::int8_t>(__float2int_rn(fminf(fmaxf(value, -127.0f), 127.0f)));
}

// value as T holds it
template <typename T>
__device__ __forceinline__ float rounded(float value) {
  return widen(round_to<T>(value));
}

// Two 16-bit elements in one register: there are instructions that round or multiply both.
template <typename T>
struct PairOf {
  using Type = void;  // of float32 there is none
};
template <>
struct PairOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
};
template <>
struct PairOf<__half> {
  using Type = __half2;
};
template <typename T, int kCount>
inline constexpr bool kInPairs = sizeof(T) == 2 && kCount % 2 == 0;

__device__ __forceinline__ void round_pair(float low, float high, __nv_bfloat162* pair) {
  *pair = __floats2bfloat162_rn(low, high);
}
__device__ __forceinline__ void round_pair(float low, float high, __half2* pair) {
  *pair = __floats2half2_rn(low, high);
}

// The values as T holds them.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> round_all(const float (&values)[kCount]) {
  Vector<T, kCount> result;
  if constexpr (kInPairs<T, kCount>) {
    auto* pairs = reinterpret_cast<typename PairOf<T>::Type*>(result.at);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) round_pair(values[2 * i], values[2 * i + 1], &pairs[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.at[i] = round_to<T>(values[i]);
  }
  return result;
}

// a * b, rounded to T once: of two 16-bit floats the product in float32 is exact.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> products(const Vector<T, kCount>& a,
                                                      const Vector<T, kCount>& b) {
  Vector<T, kCount> result;
  if constexpr (kInPairs<T, kCount>) {
    using Pair = typename PairOf<T>::Type;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      reinterpret_cast<Pair*>(result.at)[i] = __hmul2_rn(reinterpret_cast<const Pair*>(a.at)[i],
                                                         reinterpret_cast<const Pair*>(b.at)[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      result.at[i] = round_to<T>(__fmul_rn(widen(a.at[i]), widen(b.at[i])));
    }
  }
  return result;
}

// The sum over groups of `lanes` (a power of two up to 32) neighbouring lanes, in each of them.
// Every lane of the warp must call it.
__device__ __forceinline__ float sum_lanes(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

inline constexpr int kMaxRowThreads = 1024;

// What the threads of a row join; 0 changes nothing.
struct Sum {
  using Value = float;
  static __device__ __forceinline__ float over_warp(float value) { return sum_lanes(value, kWarp); }
};
struct Most {
  using Value = unsigned;
  static __device__ __forceinline__ unsigned over_warp(unsigned value) {
    return __reduce_max_sync(kAllLanes, value);
  }
};

// The sum or the most over all threads of a row, in each of them: a warp where blockDim.x is 32,
// else a whole block of one row, of up to kMaxRowThreads. Every thread of the row must call it. A
// kernel that calls it again for the same Join takes the turns 0 and 1 by turns: the second call
// would else overwrite what is being read.
template <typename Join>
__device__ __forceinline__ typename Join::Value join_row(typename Join::Value value, int turn = 0) {
  using Value = typename Join::Value;
  value = Join::over_warp(value);
  if (blockDim.x == kWarp) return value;
  __shared__ Value warps[2][kMaxRowThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) warps[turn][threadIdx.x / kWarp] = value;
  __syncthreads();
  const bool used = lane < static_cast<int>(blockDim.x) / kWarp;
  return Join::over_warp(used ? warps[turn][lane] : Value{});
}

// Item `item` of two row sets, the first one's rows first.
struct RoutedRow {
  std::int64_t row;
  bool in_first;
};

// A listed row that is not among the `rows` ends the kernel with a trap.
__device__ __forceinline__ RoutedRow routed_row(const RowSet& first, const RowSet& second,
                                                std::int64_t item, std::int64_t rows) {
  const bool in_first = item < first.count;
  const std::int64_t at = in_first ? item : item - first.count;
  const std::int64_t* index = in_first ? first.index : second.index;
  const std::int64_t row =
      index == nullptr ? (in_first ? first.first : second.first) + at : index[at];
  if (row < 0 || row >= rows) __trap();
  return {row, in_first};
}

// Calls body(T{}) with the device type of `dtype`.
template <typename Body>
void with_device_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(__nv_bfloat16{});
    case DType::f16:
      return body(__half{});
  }
}

// Calls body(Q{}) with the device type of a quantised matrix.
template <typename Body>
void with_device_stored(Stored stored, const Body& body) {
  return stored == Stored::e4m3 ? body(__nv_fp8_e4m3{}) : body(std::int8_t{});
}

inline bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kVectorBytes == 0;
}
inline bool vectors_fit(DType dtype, std::int64_t elements) {
  return elements * element_size(dtype) % kVectorBytes == 0;
}

inline constexpr std::int64_t kMaxBlocks = 0x7fffffff;  // of a grid's x dimension

// The text of the last launch's error, or nullptr.
inline const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Calls launch.operator()<T, kCount>() with the device type of `dtype` and the elements of a
// 16-byte vector, or 1 where the call is not vectorised. The text of the launch's error, or
// nullptr.
template <typename Launch>
const char* launch_typed(DType dtype, bool vectorised, const Launch& launch) {
  with_device_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (vectorised) {
      launch.template operator()<T, kVectorBytes / sizeof(T)>();
    } else {
      launch.template operator()<T, 1>();
    }
  });
  return launch_error();
}

}  // namespace diptych::kernels

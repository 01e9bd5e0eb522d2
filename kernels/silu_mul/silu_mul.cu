#include "kernels/device_quantize.cuh"
#include "kernels/silu_mul/silu_mul.h"

namespace diptych::kernels {
namespace {

constexpr int kMaxThreads = 256;  // of a block that is a part of a row
constexpr int kHeld = 4;          // vectors of a quantised row that one thread keeps in registers

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> gated(const T* gate, const T* up) {
  Vector<T, kCount> value = load<T, kCount>(gate);
  const Vector<T, kCount> factor = load<T, kCount>(up);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float x = widen(value.at[i]);
    const float silu = rounded<T>(x / (1.0f + expf(-x)));
    value.at[i] = round_to<T>(__fmul_rn(silu, widen(factor.at[i])));
  }
  return value;
}

// One vector per thread; `chunks` blocks cover a row.
template <typename T, int kCount>
__global__ void __launch_bounds__(kMaxThreads)
    silu_mul_kernel(const SiluMulArgs args, unsigned chunks) {
  const std::int64_t row = blockIdx.x / chunks;
  const std::int64_t vector =
      static_cast<std::int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x;
  const std::int64_t at = vector * kCount;
  if (at >= args.inner) return;
  const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride + at;
  T* y = static_cast<T*>(args.y) + row * args.y_stride + at;
  store<T, kCount>(y, gated<T, kCount>(gate, gate + args.inner));
}

// One row per block. kInRegisters: kHeld vectors per thread cover the row.
template <typename T, int kCount, bool kInRegisters>
__global__ void __launch_bounds__(kMaxRowThreads)
    silu_mul_quantised_kernel(const SiluMulArgs args) {
  const std::int64_t row = blockIdx.x;
  const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
  const T* up = gate + args.inner;
  __nv_fp8_e4m3* y = static_cast<__nv_fp8_e4m3*>(args.y) + row * args.y_stride;
  const std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * kCount;
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kCount;

  unsigned most = 0;
  Vector<T, kCount> held[kInRegisters ? kHeld : 1];
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (at >= args.inner) continue;
      held[i] = gated<T, kCount>(gate + at, up + at);
      most = most_of(most, held[i]);
    }
  } else {
    for (std::int64_t at = first; at < args.inner; at += step) {
      most = most_of(most, gated<T, kCount>(gate + at, up + at));
    }
  }
  const float scale = scale_of_row(most, kE4m3Limit);
  const float inverse = __frcp_rn(scale);
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (at < args.inner) store_quantized(y + at, held[i], inverse);
    }
  } else {
    for (std::int64_t at = first; at < args.inner; at += step) {
      store_quantized(y + at, gated<T, kCount>(gate + at, up + at), inverse);
    }
  }
  if (threadIdx.x == 0) args.scales[row] = scale;
}

struct Grid {
  std::int64_t threads, chunks;
};

std::int64_t whole_warps(std::int64_t threads) {
  return (threads + kWarp - 1) / kWarp * kWarp;
}

Grid grid_of(std::int64_t inner, std::int64_t count) {
  const std::int64_t vectors = (inner + count - 1) / count;
  std::int64_t threads = whole_warps(vectors);
  if (threads > kMaxThreads) threads = kMaxThreads;
  return {threads, (vectors + threads - 1) / threads};
}

template <typename T, int kCount>
void launch_quantised(const SiluMulArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = (args.inner + kCount - 1) / kCount;
  std::int64_t threads = whole_warps((vectors + kHeld - 1) / kHeld);
  if (threads > kMaxRowThreads) threads = kMaxRowThreads;
  const auto rows = static_cast<unsigned>(args.rows), block = static_cast<unsigned>(threads);
  if (vectors <= threads * kHeld) {
    silu_mul_quantised_kernel<T, kCount, true><<<rows, block, 0, stream>>>(args);
  } else {
    silu_mul_quantised_kernel<T, kCount, false><<<rows, block, 0, stream>>>(args);
  }
}

template <typename T, int kCount>
void launch(const SiluMulArgs& args, CUstream_st* stream) {
  if (args.scales != nullptr) {
    launch_quantised<T, kCount>(args, stream);
    return;
  }
  const Grid grid = grid_of(args.inner, kCount);
  silu_mul_kernel<T, kCount>
      <<<static_cast<unsigned>(args.rows * grid.chunks), static_cast<unsigned>(grid.threads), 0,
         stream>>>(args, static_cast<unsigned>(grid.chunks));
}

}  // namespace

const char* silu_mul_unsupported(const SiluMulArgs& args) {
  if (args.inner < 1) return "the inner width is below 1";
  if (args.rows < 0) return "the number of rows is negative";
  if (args.rows > kMaxBlocks / grid_of(args.inner, 1).chunks) {
    return "rows * inner / 256 is beyond 2^31 - 1 blocks";
  }
  return nullptr;
}

const char* silu_mul(const SiluMulArgs& args, CUstream_st* stream) {
  if (const char* reason = silu_mul_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  // A row of codes is stored in vectors of as many bytes as gate's vectors have elements.
  const bool vectorised =
      aligned(args.gate_up) && aligned(args.y) && vectors_fit(args.dtype, args.inner) &&
      vectors_fit(args.dtype, args.gate_up_stride) && vectors_fit(args.dtype, args.y_stride);
  return launch_typed(args.dtype, vectorised,
                      [&]<typename T, int kCount>() { launch<T, kCount>(args, stream); });
}

}  // namespace diptych::kernels

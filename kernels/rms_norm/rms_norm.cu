#include "kernels/device_vector.cuh"
#include "kernels/rms_norm/rms_norm.h"

namespace diptych::kernels {
namespace {

constexpr int kHeld = 4;  // vectors of a row that one thread keeps in registers
constexpr int kMaxThreads = 1024;
constexpr int kNarrowThreads = 128;  // of a block where each warp takes one row

// x, or x + delta rounded and stored to `sum`.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> load_summed(const T* x, const T* delta, T* sum,
                                                         std::int64_t at) {
  Vector<T, kCount> value = load<T, kCount>(x + at);
  if (delta != nullptr) {
    const Vector<T, kCount> added = load<T, kCount>(delta + at);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value.at[i] = round_to<T>(widen(value.at[i]) + widen(added.at[i]));
    }
    store<T, kCount>(sum + at, value);
  }
  return value;
}

template <typename T, int kCount>
__device__ __forceinline__ float sum_squares(const Vector<T, kCount>& value) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += widen(value.at[i]) * widen(value.at[i]);
  return sum;
}

template <typename T, int kCount>
__device__ __forceinline__ void write_normed(T* y, const T* weight, std::int64_t at,
                                             Vector<T, kCount> value, float scale) {
  const Vector<T, kCount> w = load<T, kCount>(weight + at);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float normed = rounded<T>(__fmul_rn(widen(value.at[i]), scale));
    value.at[i] = round_to<T>(__fmul_rn(normed, widen(w.at[i])));
  }
  store<T, kCount>(y + at, value);
}

// The sum over all threads of a row: a warp, or a whole block of one row.
__device__ __forceinline__ float sum_row(float value) {
  value = sum_lanes(value, kWarp);
  if (blockDim.x == kWarp) return value;
  __shared__ float warps[kMaxThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  return sum_lanes(lane < static_cast<int>(blockDim.x) / kWarp ? warps[lane] : 0.0f, kWarp);
}

// blockDim.x threads (a multiple of 32) per row, blockDim.y rows per block (more than one only
// where blockDim.x is 32). kInRegisters: kHeld vectors per thread cover the row.
template <typename T, int kCount, bool kInRegisters>
__global__ void __launch_bounds__(kMaxThreads) rms_norm_kernel(const RmsNormArgs args) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= args.rows) return;  // whole warps leave together
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* weight = static_cast<const T*>(args.weight);
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
  const T* delta = nullptr;
  T* sum = nullptr;
  if (args.delta != nullptr) {
    delta = static_cast<const T*>(args.delta) + row * args.delta_stride;
    sum = static_cast<T*>(args.sum) + row * args.sum_stride;
  }
  const std::int64_t first = static_cast<std::int64_t>(threadIdx.x) * kCount;
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kCount;

  float squares = 0;
  Vector<T, kCount> held[kInRegisters ? kHeld : 1];
  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (at >= args.width) continue;
      held[i] = load_summed<T, kCount>(x, delta, sum, at);
      squares += sum_squares(held[i]);
    }
  } else {
    for (std::int64_t at = first; at < args.width; at += step) {
      squares += sum_squares(load_summed<T, kCount>(x, delta, sum, at));
    }
  }
  const float mean = sum_row(squares) / static_cast<float>(args.width);
  const float scale = rsqrtf(mean + args.eps);

  if constexpr (kInRegisters) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (at < args.width) write_normed<T, kCount>(y, weight, at, held[i], scale);
    }
  } else {
    const T* source = delta != nullptr ? sum : x;  // a thread rereads what it wrote itself
    for (std::int64_t at = first; at < args.width; at += step) {
      write_normed<T, kCount>(y, weight, at, load<T, kCount>(source + at), scale);
    }
  }
}

template <typename T, int kCount>
void launch(const RmsNormArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = (args.width + kCount - 1) / kCount;
  // Narrow rows: a warp each. Wide rows: a block each, two vectors a thread while 1024 threads
  // last.
  std::int64_t threads = kWarp;
  if (vectors > kWarp * kHeld) threads = (vectors + 2 * kWarp - 1) / (2 * kWarp) * kWarp;
  if (threads > kMaxThreads) threads = kMaxThreads;
  const dim3 block(static_cast<unsigned>(threads),
                   static_cast<unsigned>(threads == kWarp ? kNarrowThreads / kWarp : 1));
  const dim3 grid(static_cast<unsigned>((args.rows + block.y - 1) / block.y));
  if (vectors <= threads * kHeld) {
    rms_norm_kernel<T, kCount, true><<<grid, block, 0, stream>>>(args);
  } else {
    rms_norm_kernel<T, kCount, false><<<grid, block, 0, stream>>>(args);
  }
}

bool vectorised(const RmsNormArgs& args) {
  const bool plain = aligned(args.x) && aligned(args.weight) && aligned(args.y) &&
                     vectors_fit(args.dtype, args.width) &&
                     vectors_fit(args.dtype, args.x_stride) &&
                     vectors_fit(args.dtype, args.y_stride);
  if (!plain || args.delta == nullptr) return plain;
  return aligned(args.delta) && aligned(args.sum) && vectors_fit(args.dtype, args.delta_stride) &&
         vectors_fit(args.dtype, args.sum_stride);
}

}  // namespace

const char* rms_norm_unsupported(const RmsNormArgs& args) {
  if (args.width < 1) return "the width is below 1";
  if (args.rows < 0) return "the number of rows is negative";
  if (args.rows > kMaxBlocks) return "more than 2^31 - 1 rows";
  if ((args.delta == nullptr) != (args.sum == nullptr)) return "delta and sum come together or not";
  return nullptr;
}

const char* rms_norm(const RmsNormArgs& args, CUstream_st* stream) {
  if (const char* reason = rms_norm_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  return launch_typed(args.dtype, vectorised(args),
                      [&]<typename T, int kCount>() { launch<T, kCount>(args, stream); });
}

}  // namespace diptych::kernels

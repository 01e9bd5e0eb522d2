#include "kernels/device_chain.cuh"
#include "kernels/device_quantize.cuh"
#include "kernels/device_silu.cuh"
#include "kernels/silu_mul/silu_mul.h"

namespace diptych::kernels {
namespace {

constexpr int kMaxThreads = 256;  // of a block that is a part of a row
constexpr int kHeld = 4;          // vectors of a quantised row that one thread keeps in registers
constexpr int kStages = 3;        // quantised rows that a block has on their way

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> gated(const T* gate, const T* up) {
  return products(silu(load<T, kCount>(gate)), load<T, kCount>(up));
}

// One vector per thread; `chunks` blocks cover a row.
template <typename T, int kCount>
__global__ void __launch_bounds__(kMaxThreads)
    silu_mul_kernel(const SiluMulArgs args, unsigned chunks) {
  let_next_start();
  const std::int64_t row = blockIdx.x / chunks;
  const std::int64_t vector =
      static_cast<std::int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x;
  const std::int64_t at = vector * kCount;
  if (at >= args.inner) return;
  const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride + at;
  T* y = static_cast<T*>(args.y) + row * args.y_stride + at;
  await_predecessors();
  store<T, kCount>(y, gated<T, kCount>(gate, gate + args.inner));
}

// One row per block. kInRegisters: kHeld vectors per thread cover the row.
template <typename T, int kCount, bool kInRegisters>
__global__ void __launch_bounds__(kMaxRowThreads)
    silu_mul_quantised_kernel(const SiluMulArgs args) {
  let_next_start();
  await_predecessors();
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

// A block takes every gridDim.x-th row and has the next ones on their way to shared memory while it
// works. kVectors vectors per thread cover a row; each thread fetches those that it will itself
// read, so threads wait for each other for nothing but the row's largest magnitude.
template <typename T, int kCount, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads) silu_mul_fetched_kernel(const SiluMulArgs args) {
  extern __shared__ uint4 stages[];  // [kStages, gate and up, vectors]
  const int vectors = static_cast<int>(args.inner / kCount);
  const auto place = [&](int stage, int vector) {  // of gate; that of up is `vectors` further on
    return stages + 2 * stage * vectors + vector;
  };
  const auto for_vectors = [&](const auto& body) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int vector = static_cast<int>(threadIdx.x + i * blockDim.x);
      if (vector < vectors) body(i, vector);
    }
  };
  const auto fetch_row = [&](int stage, std::int64_t row) {
    if (row < args.rows) {
      const T* gate = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
      for_vectors([&](int, int vector) {
        fetch(place(stage, vector), gate + vector * kCount, true);
        fetch(place(stage, vector) + vectors, gate + args.inner + vector * kCount, true);
      });
    }
    end_of_fetches();
  };

  const std::int64_t first = blockIdx.x, step = gridDim.x;
  for (int stage = 0; stage < kStages; ++stage) fetch_row(stage, first + stage * step);
  int stage = 0, turn = 0;
  for (std::int64_t row = first; row < args.rows; row += step) {
    await_fetches<kStages - 1>();
    Vector<T, kCount> held[kVectors];
    unsigned most = 0;
    for_vectors([&](int i, int vector) {
      const auto* gate = reinterpret_cast<const T*>(place(stage, vector));
      held[i] = gated<T, kCount>(gate, gate + args.inner);
      most = most_of(most, held[i]);
    });
    fetch_row(stage, row + kStages * step);
    const float scale = scale_of_row(most, kE4m3Limit, turn);
    const float inverse = __frcp_rn(scale);
    __nv_fp8_e4m3* y = static_cast<__nv_fp8_e4m3*>(args.y) + row * args.y_stride;
    for_vectors([&](int i, int vector) { store_quantized(y + vector * kCount, held[i], inverse); });
    if (threadIdx.x == 0) args.scales[row] = scale;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    turn = 1 - turn;
  }
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

// Whether it can: the rows in flight fit into a block's threads and shared memory.
template <typename T, int kCount, int kVectors>
bool launch_fetched(const SiluMulArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = args.inner / kCount;
  // As many warps for each of a multiprocessor's four schedulers: a row waits for the slowest.
  constexpr std::int64_t kRound = 4 * kWarp;
  const std::int64_t threads = ((vectors + kVectors - 1) / kVectors + kRound - 1) / kRound * kRound;
  const std::int64_t bytes = kStages * 2 * vectors * kVectorBytes;
  constexpr std::int64_t kStaticBytes = 1024;  // no less than what the kernel joins a row with
  if (threads > kMaxRowThreads ||
      bytes + kStaticBytes > device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
    return false;
  }
  const auto kernel = silu_mul_fetched_kernel<T, kCount, kVectors>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
  std::int64_t blocks =
      device_attribute(cudaDevAttrMultiProcessorCount) * (kMaxRowThreads / threads);
  if (blocks > args.rows) blocks = args.rows;
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads),
           static_cast<std::size_t>(bytes), stream>>>(args);
  return true;
}

template <typename T, int kCount>
void launch_held(const SiluMulArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = (args.inner + kCount - 1) / kCount;
  std::int64_t threads = whole_warps((vectors + kHeld - 1) / kHeld);
  if (threads > kMaxRowThreads) threads = kMaxRowThreads;
  const auto rows = static_cast<unsigned>(args.rows), block = static_cast<unsigned>(threads);
  const auto kernel = vectors <= threads * kHeld ? silu_mul_quantised_kernel<T, kCount, true>
                                                 : silu_mul_quantised_kernel<T, kCount, false>;
  launch_chained({args.rows <= kChainedRows}, kernel, rows, block, 0, stream, args);
}

template <typename T, int kCount>
void launch_quantised(const SiluMulArgs& args, CUstream_st* stream) {
  if constexpr (kInPairs<T, kCount>) {
    if (args.shape == 0 && launch_fetched<T, kCount, 3>(args, stream)) return;
    if (args.shape == 1 && launch_fetched<T, kCount, 4>(args, stream)) return;
  }
  launch_held<T, kCount>(args, stream);
}

template <typename T, int kCount>
void launch(const SiluMulArgs& args, CUstream_st* stream) {
  if (args.scales != nullptr) {
    launch_quantised<T, kCount>(args, stream);
    return;
  }
  const Grid grid = grid_of(args.inner, kCount);
  launch_chained({args.rows <= kChainedRows}, silu_mul_kernel<T, kCount>,
                 static_cast<unsigned>(args.rows * grid.chunks),
                 static_cast<unsigned>(grid.threads), 0, stream, args,
                 static_cast<unsigned>(grid.chunks));
}

}  // namespace

const char* silu_mul_unsupported(const SiluMulArgs& args) {
  if (args.inner < 1) return "the inner width is below 1";
  if (args.rows < 0) return "the number of rows is negative";
  if (args.rows > kMaxBlocks / grid_of(args.inner, 1).chunks) {
    return "rows * inner / 256 is beyond 2^31 - 1 blocks";
  }
  if (args.shape < 0 || args.shape >= kSiluShapes) return "there is no such shape";
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

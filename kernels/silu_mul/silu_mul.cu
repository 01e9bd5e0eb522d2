#include "kernels/device_vector.cuh"
#include "kernels/silu_mul/silu_mul.h"

namespace diptych::kernels {
namespace {

constexpr int kMaxThreads = 256;

// One vector per thread; `chunks` blocks cover a row.
template <typename T, int kCount>
__global__ void __launch_bounds__(kMaxThreads)
    silu_mul_kernel(const SiluMulArgs args, unsigned chunks) {
  const std::int64_t row = blockIdx.x / chunks;
  const std::int64_t vector =
      static_cast<std::int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x;
  const std::int64_t at = vector * kCount;
  if (at >= args.inner) return;
  const T* gate_row = static_cast<const T*>(args.gate_up) + row * args.gate_up_stride;
  T* y_row = static_cast<T*>(args.y) + row * args.y_stride;
  Vector<T, kCount> value = load<T, kCount>(gate_row + at);
  const Vector<T, kCount> up = load<T, kCount>(gate_row + args.inner + at);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float x = widen(value.at[i]);
    const float silu = rounded<T>(x / (1.0f + expf(-x)));
    value.at[i] = round_to<T>(__fmul_rn(silu, widen(up.at[i])));
  }
  store<T, kCount>(y_row + at, value);
}

struct Grid {
  std::int64_t threads, chunks;
};

Grid grid_of(std::int64_t inner, std::int64_t count) {
  const std::int64_t vectors = (inner + count - 1) / count;
  std::int64_t threads = (vectors + kWarp - 1) / kWarp * kWarp;
  if (threads > kMaxThreads) threads = kMaxThreads;
  return {threads, (vectors + threads - 1) / threads};
}

template <typename T, int kCount>
void launch(const SiluMulArgs& args, CUstream_st* stream) {
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
  const bool vectorised =
      aligned(args.gate_up) && aligned(args.y) && vectors_fit(args.dtype, args.inner) &&
      vectors_fit(args.dtype, args.gate_up_stride) && vectors_fit(args.dtype, args.y_stride);
  return launch_typed(args.dtype, vectorised,
                      [&]<typename T, int kCount>() { launch<T, kCount>(args, stream); });
}

}  // namespace diptych::kernels

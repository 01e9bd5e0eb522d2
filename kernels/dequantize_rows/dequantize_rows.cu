#include "kernels/dequantize_rows/dequantize_rows.h"
#include "kernels/device_vector.cuh"

namespace diptych::kernels {
namespace {

constexpr int kThreads = 256;

// One vector of y per thread, so that a warp writes without gaps; `chunks` blocks cover a row.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    dequantize_rows_kernel(const DequantizeRowsArgs args, unsigned chunks) {
  const std::int64_t row = blockIdx.x / chunks;
  const std::int64_t at =
      (static_cast<std::int64_t>(blockIdx.x % chunks) * kThreads + threadIdx.x) * kCount;
  if (at >= args.width) return;
  const float scale = args.scales[row];
  const Vector<std::int8_t, kCount> value =
      load<std::int8_t, kCount>(args.values + row * args.width + at);
  float y[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) y[i] = __fmul_rn(widen(value.at[i]), scale);
  store<T, kCount>(static_cast<T*>(args.y) + row * args.width + at, round_all<T, kCount>(y));
}

std::int64_t chunks_of(std::int64_t width, std::int64_t count) {
  return (width + kThreads * count - 1) / (kThreads * count);
}

template <typename T, int kCount>
void launch(const DequantizeRowsArgs& args, CUstream_st* stream) {
  const std::int64_t chunks = chunks_of(args.width, kCount);
  dequantize_rows_kernel<T, kCount>
      <<<static_cast<unsigned>(args.rows * chunks), kThreads, 0, stream>>>(
          args, static_cast<unsigned>(chunks));
}

}  // namespace

const char* dequantize_rows_unsupported(const DequantizeRowsArgs& args) {
  if (args.width < 1) return "the width is below 1";
  if (args.rows < 0) return "the number of rows is negative";
  if (args.rows > kMaxBlocks / chunks_of(args.width, 1)) {
    return "rows * width / 256 is beyond 2^31 - 1 blocks";
  }
  return nullptr;
}

const char* dequantize_rows(const DequantizeRowsArgs& args, CUstream_st* stream) {
  if (const char* reason = dequantize_rows_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  const bool vectorised = aligned(args.values) && aligned(args.y) && args.width % kVectorBytes == 0;
  return launch_typed(args.dtype, vectorised,
                      [&]<typename T, int kCount>() { launch<T, kCount>(args, stream); });
}

}  // namespace diptych::kernels

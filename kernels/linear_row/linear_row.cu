#include "kernels/device_vector.cuh"
#include "kernels/linear_row/linear_row.h"

namespace diptych::kernels {
namespace {

// Four outputs a block: 3584 of them are then 896 blocks, which 132 multiprocessors share evenly.
constexpr int kWarps = 4;
// Vectors a lane has on their way at once.
constexpr int kUnroll = 8;

// Weights are read once: past L1, first to go from L2.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> load_once(const T* from) {
  if constexpr (sizeof(Vector<T, kCount>) == kVectorBytes) {
    const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
    return *reinterpret_cast<const Vector<T, kCount>*>(&bits);
  } else {
    return load<T, kCount>(from);
  }
}

template <typename T, int kCount>
__device__ __forceinline__ float dot(const Vector<T, kCount>& a, const Vector<T, kCount>& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += widen(a.at[i]) * widen(b.at[i]);
  return sum;
}

template <typename T, int kCount>
__global__ void __launch_bounds__(kWarps* kWarp) linear_row_kernel(const LinearRowArgs args) {
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (output >= args.outputs) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T* x = static_cast<const T*>(args.x);
  const T* weight = static_cast<const T*>(args.weight) + output * args.inputs;
  constexpr std::int64_t kStep = static_cast<std::int64_t>(kWarp) * kCount;
  float sum = 0;
  std::int64_t at = static_cast<std::int64_t>(lane) * kCount;
  for (; at + (kUnroll - 1) * kStep < args.inputs; at += kUnroll * kStep) {
    Vector<T, kCount> w[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) w[u] = load_once<T, kCount>(weight + at + u * kStep);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += dot(w[u], load<T, kCount>(x + at + u * kStep));
  }
  for (; at < args.inputs; at += kStep)
    sum += dot(load_once<T, kCount>(weight + at), load<T, kCount>(x + at));
  sum = sum_lanes(sum, kWarp);
  if (lane != 0) return;
  if (args.bias != nullptr) sum += widen(static_cast<const T*>(args.bias)[output]);
  static_cast<T*>(args.y)[output] = round_to<T>(sum);
}

template <typename T, int kCount>
void launch(const LinearRowArgs& args, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>((args.outputs + kWarps - 1) / kWarps);
  linear_row_kernel<T, kCount><<<blocks, kWarps * kWarp, 0, stream>>>(args);
}

}  // namespace

const char* linear_row_unsupported(const LinearRowArgs& args) {
  if (args.inputs < 1 || args.outputs < 1) return "inputs or outputs is below 1";
  if (args.outputs > kMaxBlocks) return "more than 2^31 - 1 outputs";
  return nullptr;
}

const char* linear_row(const LinearRowArgs& args, CUstream_st* stream) {
  if (const char* reason = linear_row_unsupported(args)) return reason;
  const bool vectorised =
      aligned(args.x) && aligned(args.weight) && vectors_fit(args.dtype, args.inputs);
  return launch_typed(args.dtype, vectorised,
                      [&]<typename T, int kCount>() { launch<T, kCount>(args, stream); });
}

}  // namespace diptych::kernels

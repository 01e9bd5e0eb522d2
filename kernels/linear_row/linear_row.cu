#include "kernels/linear_row/linear_row_device.cuh"

namespace diptych::kernels {
namespace {

// Vectors that a lane has on their way at once.
constexpr int kUnroll = 4;
// Warps that share an output, by the bytes of its weights: small blocks end soon, so that less is
// lost between the kernels of a chain (docs/speed.md, "Qwen3-8B").
constexpr int kFewWarps = 2, kManyWarps = 4;
constexpr std::int64_t kFewWarpsBytes = std::int64_t{12} * 1024;
// Warps of one row that a multiprocessor must have room for, which bounds their registers, and the
// blocks that it may have at all (CUDA C++ Programming Guide, "Compute Capabilities").
constexpr int kWarpsAtOnce = 36;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 890
constexpr int kMostBlocks = 16;
#else
constexpr int kMostBlocks = 24;
#endif
constexpr int blocks_at_once(int warps) {
  return kWarpsAtOnce / warps < kMostBlocks ? kWarpsAtOnce / warps : kMostBlocks;
}

template <int kCount, typename W>
__device__ __forceinline__ void widen_all(const Vector<W, kCount>& from, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = widen(from.at[i]);
}
// Two at a time: there is an instruction for that.
template <int kCount>
__device__ __forceinline__ void widen_all(const Vector<__nv_fp8_e4m3, kCount>& from,
                                          float (&to)[kCount]) {
  if constexpr (kCount == 1) {
    to[0] = widen(from.at[0]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(from.at[i].__x | from.at[i + 1].__x << 8);
      const float2 wide = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      to[i] = wide.x;
      to[i + 1] = wide.y;
    }
  }
}

template <typename X, int kCount>
__device__ __forceinline__ float dot(const float (&a)[kCount], const Vector<X, kCount>& b) {
  float wide[kCount];
  widen_all<kCount>(b, wide);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += a[i] * wide[i];
  return sum;
}

// A block for an output of all rows: its warps take the vectors of the inputs in turns. kRows is
// args.rows rounded up: what is read beyond is the last row again.
template <typename X, typename W, int kCount, int kRows, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, kRows == 1 ? blocks_at_once(kWarps) : 1)
    linear_row_kernel(const LinearRowArgs args) {
  let_next_start();
  constexpr int kStep = kWarps * kWarp * kCount;
  const std::int64_t output = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), inputs = static_cast<int>(args.inputs);
  const W* weight = static_cast<const W*>(args.weight) + output * args.inputs;
  Vector<W, kCount> w[kUnroll];
  // Zeros behind the inputs. Their products are not added: the x they meet may be infinite.
  const auto load_all = [&](int at) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      w[u] = {};
      if (at + u * kStep < inputs) w[u] = load_once<W, kCount>(weight + at + u * kStep);
    }
  };
  int at = thread * kCount;
  load_all(at);  // ahead of x
  await_predecessors();
  float sums[kRows] = {};
#pragma unroll 1
  while (true) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int place = at + u * kStep, safe = min(place, inputs - kCount);
      float wide[kCount];
      widen_all<kCount>(w[u], wide);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t row = kRows == 1 || r < args.rows ? r : args.rows - 1;
        const X* x = static_cast<const X*>(args.x) + row * args.inputs;
        const float product = dot(wide, load<X, kCount>(x + safe));
        sums[r] += place < inputs ? product : 0.0f;
      }
    }
    at += kUnroll * kStep;
    if (at >= inputs) break;
    load_all(at);
  }

  __shared__ float parts[kWarps][kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = sum_lanes(sums[r], kWarp);
    if (thread % kWarp == 0) parts[thread / kWarp][r] = sum;
  }
  __syncthreads();
  if (thread >= kRows || thread >= args.rows) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += parts[i][thread];
  finish(args, thread, output, sum);
}

template <typename X, typename W, int kCount, int kRows>
void launch(const LinearRowArgs& args, CUstream_st* stream) {
  const bool few = args.inputs * static_cast<std::int64_t>(sizeof(W)) <= kFewWarpsBytes;
  const auto kernel = few ? linear_row_kernel<X, W, kCount, kRows, kFewWarps>
                          : linear_row_kernel<X, W, kCount, kRows, kManyWarps>;
  launch_chained({}, kernel, static_cast<unsigned>(args.outputs),
                 (few ? kFewWarps : kManyWarps) * kWarp, 0, stream, args);
}

template <typename X, typename W, int kCount>
void launch_rows(const LinearRowArgs& args, CUstream_st* stream) {
  constexpr int kFewRows = 8;
  if (args.rows == 1) return launch<X, W, kCount, 1>(args, stream);
  if (args.rows <= kFewRows) return launch<X, W, kCount, kFewRows>(args, stream);
  launch<X, W, kCount, kMostLinearRows>(args, stream);
}

// What linear_row_tiles.cu takes: but for float32 rows, all that is aligned.
bool in_tiles(const LinearRowArgs& args) {
  const bool narrow = args.x_scales != nullptr || args.dtype != DType::f32;
  return args.stored != Stored::plain && narrow && args.inputs % kVectorBytes == 0 &&
         aligned(args.x) && aligned(args.weight);
}

// What linear_row_plain.cu takes.
bool in_plain_tiles(const LinearRowArgs& args) {
  return args.stored == Stored::plain && args.dtype != DType::f32 &&
         vectors_fit(args.dtype, args.inputs) && aligned(args.x) && aligned(args.weight);
}

std::int64_t most_rows(const LinearRowArgs& args) {
  const bool several =
      args.stored == Stored::i8 || args.x_scales != nullptr || in_plain_tiles(args);
  return several ? kMostLinearRows : 1;
}

}  // namespace

const char* linear_row_unsupported(const LinearRowArgs& args) {
  if (args.inputs < 1 || args.outputs < 1) return "inputs or outputs is below 1";
  if (args.inputs > std::int64_t{1} << 30) return "more than 2^30 inputs";
  if (args.outputs > kMaxBlocks) return "more than 2^31 - 1 outputs";
  if (args.x_scales != nullptr && args.stored != Stored::e4m3) {
    return "rows of e4m3 meet weights that are not";
  }
  if (args.rows < 1 || args.rows > most_rows(args)) {
    return "no rows, or more than such weights are multiplied with at once";
  }
  if ((args.stored == Stored::plain) != (args.scales == nullptr)) {
    return "scales come with quantised weights and with no others";
  }
  if (args.shape < 0 || args.shape >= kLinearShapes) return "there is no such shape";
  return nullptr;
}

const char* linear_row(const LinearRowArgs& args, CUstream_st* stream) {
  if (const char* reason = linear_row_unsupported(args)) return reason;
  if (in_tiles(args)) {
    launch_linear_tiles(args, stream);
    return launch_error();
  }
  if (args.rows > 1 && in_plain_tiles(args)) {
    launch_linear_plain(args, stream);
    return launch_error();
  }
  const bool rows_fit = args.stored == Stored::plain ? vectors_fit(args.dtype, args.inputs)
                                                     : args.inputs % kVectorBytes == 0;
  const bool vectorised = aligned(args.x) && aligned(args.weight) && rows_fit;
  return launch_typed(args.dtype, vectorised, [&]<typename T, int kCount>() {
    using E4m3 = __nv_fp8_e4m3;
    // One-byte weights of a vector. With rows of 16 bits, vectors are the tensor cores'.
    constexpr int kBytes = sizeof(T) == 4 && kCount > 1 ? kVectorBytes : 1;
    switch (args.stored) {
      case Stored::plain:
        return launch<T, T, kCount, 1>(args, stream);
      case Stored::e4m3:
        if (args.x_scales != nullptr) return launch_rows<E4m3, E4m3, 1>(args, stream);
        return launch<T, E4m3, kBytes, 1>(args, stream);
      case Stored::i8:
        return launch_rows<T, std::int8_t, kBytes>(args, stream);
    }
  });
}

}  // namespace diptych::kernels

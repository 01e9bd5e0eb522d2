#include <type_traits>

#include "kernels/device_silu.cuh"
#include "kernels/device_vector.cuh"
#include "kernels/rms_norm_silu/rms_norm_silu.h"

namespace diptych::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = 8;  // of a vector
constexpr int kFewestLanes = 4,
              kMostVectors = 4;  // of a row, and vectors that a thread holds of it

// One row's pointers. T: of maps, P: of parts.
template <typename T, typename P>
struct Row {
  const T* x;
  const P* parts[kNormParts];
  T* sum;
  P* y;
};

template <typename T, typename P>
__device__ __forceinline__ Row<T, P> make_row(const RmsNormSiluArgs& args, unsigned row) {
  const std::int64_t first = static_cast<std::int64_t>(row) * args.width;
  const unsigned frame_rows = static_cast<unsigned>(args.frame_rows), frame = row / frame_rows;
  Row<T, P> made;
  made.x = args.x == nullptr ? nullptr : static_cast<const T*>(args.x) + first;
#pragma unroll
  for (int part = 0; part < kNormParts; ++part)
    made.parts[part] = static_cast<const P*>(args.parts[part]) + first;
  made.sum = args.sum == nullptr ? nullptr : static_cast<T*>(args.sum) + first;
  made.y = static_cast<P*>(args.y) + frame * args.y_frame_stride +
           static_cast<std::int64_t>(row - frame * frame_rows) * args.width;
  return made;
}

template <typename T, typename P, int kCount>
struct Loaded {
  Vector<T, kCount> x;
  Vector<P, kCount> parts[kNormParts];
};

template <typename T, typename P, int kCount>
__device__ __forceinline__ Loaded<T, P, kCount> load_all(const Row<T, P>& row, int count,
                                                         std::int64_t at) {
  Loaded<T, P, kCount> loaded;
  if (row.x != nullptr) loaded.x = load<T, kCount>(row.x + at);
#pragma unroll
  for (int part = 0; part < kNormParts; ++part) {
    if (part < count) loaded.parts[part] = load<P, kCount>(row.parts[part] + at);
  }
  return loaded;
}

// s at `at`, rounded to T; stored where it is asked for.
template <typename T, typename P, int kCount>
__device__ __forceinline__ Vector<T, kCount> sum_all(const Row<T, P>& row, int count,
                                                     const Loaded<T, P, kCount>& loaded,
                                                     std::int64_t at) {
  float sums[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    sums[i] = row.x == nullptr ? 0 : widen(loaded.x.at[i]);
#pragma unroll
    for (int part = 0; part < kNormParts; ++part) {
      if (part < count) sums[i] += widen(loaded.parts[part].at[i]);
    }
  }
  const Vector<T, kCount> sum = round_all<T, kCount>(sums);
  if (row.sum != nullptr) store<T, kCount>(row.sum + at, sum);
  return sum;
}

// The hardware's silu is some float32 steps off, which 16 bits hide. Beyond near_silu's range it is
// v or -0, as the power is then 0 or infinite.
template <typename P>
__device__ __forceinline__ float silu_of(float value) {
  if constexpr (std::is_same_v<P, float>) {
    return value / (1.0f + expf(-value));
  } else {
    return near_silu(value);
  }
}

template <typename T, typename P, int kCount>
__device__ __forceinline__ void write_y(const RmsNormSiluArgs& args, const Row<T, P>& row,
                                        const Vector<T, kCount>& sum, float scale,
                                        std::int64_t at) {
  float values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = widen(sum.at[i]);
  if (args.weight != nullptr) {
    const auto weight = load<T, kCount>(static_cast<const T*>(args.weight) + at);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = silu_of<P>(__fmul_rn(__fmul_rn(values[i], scale), widen(weight.at[i])));
    }
  }
  store<P, kCount>(row.y + at, round_all<P, kCount>(values));
}

__device__ __forceinline__ float scale_of_norm(const RmsNormSiluArgs& args, float squares,
                                               int lanes) {
  return rsqrtf(sum_lanes(squares, lanes) / static_cast<float>(args.width) + args.eps);
}

template <typename T, int kCount>
__device__ __forceinline__ float sum_squares(const Vector<T, kCount>& values) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) squares += widen(values.at[i]) * widen(values.at[i]);
  return squares;
}

// `lanes` threads for a row. kHeld vectors of each cover it, or it is 0.
template <typename T, typename P, int kCount, int kHeld>
__global__ void __launch_bounds__(kThreads)
    rms_norm_silu_kernel(const RmsNormSiluArgs args, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const unsigned item = blockIdx.x * (kThreads / lanes) + threadIdx.x / lanes;
  // All lanes of a warp sum together: those beyond the last row take it once more, in silence.
  const bool works = item < args.rows;
  const auto row = make_row<T, P>(args, works ? item : static_cast<unsigned>(args.rows - 1));
  const std::int64_t first = lane * kCount, step = lanes * kCount;
  const int count = args.part_count;
  float squares = 0;
  if constexpr (kHeld > 0) {
    Loaded<T, P, kCount> loaded[kHeld];
    Vector<T, kCount> held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (works && at < args.width) loaded[i] = load_all<T, P, kCount>(row, count, at);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (!works || at >= args.width) continue;
      held[i] = sum_all(row, count, loaded[i], at);
      squares += sum_squares(held[i]);
    }
    const float scale = scale_of_norm(args, squares, lanes);
    if (!works || args.y == nullptr) return;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const std::int64_t at = first + i * step;
      if (at < args.width) write_y(args, row, held[i], scale, at);
    }
  } else {
    const auto sum_at = [&](std::int64_t at) {
      return sum_all(row, count, load_all<T, P, kCount>(row, count, at), at);
    };
    // What is stored may be x: it is what the second pass reads.
    for (std::int64_t at = first; works && at < args.width; at += step)
      squares += sum_squares(sum_at(at));
    const float scale = scale_of_norm(args, squares, lanes);
    if (!works || args.y == nullptr) return;
    for (std::int64_t at = first; at < args.width; at += step) {
      const Vector<T, kCount> sum = row.sum != nullptr ? load<T, kCount>(row.sum + at) : sum_at(at);
      write_y(args, row, sum, scale, at);
    }
  }
}

template <typename T, typename P, int kCount, int kHeld>
void launch(const RmsNormSiluArgs& args, int lanes, CUstream_st* stream) {
  const int rows = kThreads / lanes;
  const auto blocks = static_cast<unsigned>((args.rows + rows - 1) / rows);
  rms_norm_silu_kernel<T, P, kCount, kHeld><<<blocks, kThreads, 0, stream>>>(args, lanes);
}

bool in_vectors(const RmsNormSiluArgs& args) {
  bool good = args.width % kElements == 0 && args.y_frame_stride % kElements == 0;
  for (const void* pointer :
       {args.x, args.weight, static_cast<const void*>(args.sum), static_cast<const void*>(args.y),
        args.parts[0], args.parts[1], args.parts[2]})
    good = good && aligned(pointer);
  return good;
}

template <typename T, typename P>
void launch(const RmsNormSiluArgs& args, CUstream_st* stream) {
  if (!in_vectors(args)) return launch<T, P, 1, 0>(args, kWarp, stream);
  // As few lanes as hold a row in three vectors each, which Wan 2.1's widths, three times a power
  // of two, fill; more vectors leave room for fewer threads.
  const std::int64_t vectors = args.width / kElements;
  int lanes = kFewestLanes;
  while (lanes < kWarp && vectors > 3 * lanes) lanes *= 2;
  if (vectors <= lanes) {
    launch<T, P, kElements, 1>(args, lanes, stream);
  } else if (vectors <= 2 * lanes) {
    launch<T, P, kElements, 2>(args, lanes, stream);
  } else if (vectors <= 3 * lanes) {
    launch<T, P, kElements, 3>(args, lanes, stream);
  } else if (vectors <= kMostVectors * lanes) {
    launch<T, P, kElements, kMostVectors>(args, lanes, stream);
  } else {
    launch<T, P, kElements, 0>(args, lanes, stream);
  }
}

}  // namespace

const char* rms_norm_silu_unsupported(const RmsNormSiluArgs& args) {
  if (args.width < 1) return "the width is below 1";
  if (args.rows > kMaxBlocks) return "more than 2^31 - 1 rows";
  if (args.frame_rows < 1 || args.frame_rows > kMaxBlocks) return "a frame has 1 to 2^31 - 1 rows";
  if (args.part_count < 0 || args.part_count > kNormParts) return "more than three parts";
  if (args.x == nullptr && args.part_count == 0) return "nothing to be summed";
  const bool mixed = args.dtype == DType::f32 && args.part_dtype == DType::f16;
  if (args.dtype != args.part_dtype && !mixed) return "parts of this dtype beside these maps";
  return nullptr;
}

const char* rms_norm_silu(const RmsNormSiluArgs& args, CUstream_st* stream) {
  if (const char* reason = rms_norm_silu_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  if (args.dtype != args.part_dtype) {
    launch<float, __half>(args, stream);
  } else {
    with_device_type(args.dtype, [&](auto type) {
      using T = decltype(type);
      launch<T, T>(args, stream);
    });
  }
  return launch_error();
}

}  // namespace diptych::kernels

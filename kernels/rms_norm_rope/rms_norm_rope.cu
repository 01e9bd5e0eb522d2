#include "kernels/device_row.cuh"
#include "kernels/rms_norm_rope/rms_norm_rope.h"

namespace diptych::kernels {
namespace {

// Vectors of a part that one thread keeps in registers: a part of either is held, a longer one is
// not.
constexpr int kFew = 2, kMany = 4;
constexpr int kNarrowThreads = 128;  // of a block where each warp takes one part

// The cosines and sines of a vector's pairs.
template <int kPairs>
struct Angles {
  float cos[kPairs], sin[kPairs];
};

// `column`: of the vector in its part. Where heads begin with vectors, its angles lie side by side.
template <int kPairs>
__device__ __forceinline__ Angles<kPairs> angles_at(const float* cos, const float* sin,
                                                    int head_dim, unsigned column,
                                                    bool side_by_side) {
  Angles<kPairs> angles;
  const int in_head = static_cast<int>(column % static_cast<unsigned>(head_dim));
  if (side_by_side) {
    const auto c = load<float, kPairs>(cos + in_head / 2),
               s = load<float, kPairs>(sin + in_head / 2);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      angles.cos[i] = c.at[i];
      angles.sin[i] = s.at[i];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = (in_head + 2 * i) % head_dim / 2;
      angles.cos[i] = cos[pair];
      angles.sin[i] = sin[pair];
    }
  }
  return angles;
}

// Two elements at a time where vectors do not fit: a pair begins anywhere.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> load_part(const T* from) {
  if constexpr (kCount > 2) {
    return load<T, kCount>(from);
  } else {
    Vector<T, kCount> value;
#pragma unroll
    for (int i = 0; i < kCount; ++i) value.at[i] = from[i];
    return value;
  }
}
template <typename T, int kCount>
__device__ __forceinline__ void store_part(T* to, const Vector<T, kCount>& value) {
  if constexpr (kCount > 2) {
    store<T, kCount>(to, value);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = value.at[i];
  }
}

// The _rn products and sums keep the compiler from fusing them, as the reference does not.
template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> normed(const Vector<T, kCount>& value,
                                                    const Vector<T, kCount>& weight, float scale) {
  float results[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    results[i] = __fmul_rn(__fmul_rn(widen(value.at[i]), scale), widen(weight.at[i]));
  }
  return round_all<T, kCount>(results);
}

template <typename T, int kCount>
__device__ __forceinline__ Vector<T, kCount> rotated(const Vector<T, kCount>& value,
                                                     const Angles<kCount / 2>& angles) {
  float results[kCount];
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const float a = widen(value.at[2 * i]), b = widen(value.at[2 * i + 1]);
    const float c = angles.cos[i], s = angles.sin[i];
    results[2 * i] = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
    results[2 * i + 1] = __fadd_rn(__fmul_rn(a, s), __fmul_rn(b, c));
  }
  return round_all<T, kCount>(results);
}

// blockDim.x threads (a multiple of 32) per part of a row, blockDim.y of them per block (more than
// one only where blockDim.x is 32). kHeld vectors per thread cover the part, or it is 0.
template <typename T, int kCount, int kHeld>
__global__ void __launch_bounds__(kMaxRowThreads)
    rms_norm_rope_kernel(const RmsNormRopeArgs args, bool side_by_side) {
  // Divisions of 64 bits would take longer than the rest.
  const unsigned item = blockIdx.x * blockDim.y + threadIdx.y;
  const bool paired = args.parts == 2;
  const unsigned row = paired ? item / 2 : item;
  if (row >= args.rows) return;  // whole warps leave together
  const unsigned part = paired ? item % 2 : 0;
  T* x = static_cast<T*>(args.x) + row * args.x_stride + part * args.width;
  const T* weights = static_cast<const T*>(part == 0 ? args.weights[0] : args.weights[1]);
  const Walk<kCount, kHeld> walk{static_cast<std::int64_t>(threadIdx.x) * kCount,
                                 static_cast<std::int64_t>(blockDim.x) * kCount, args.width};
  float squares = 0;
  Vector<T, kCount> held[kHeld > 0 ? kHeld : 1];
  walk([&](int i, std::int64_t at) {
    held[i] = load_part<T, kCount>(x + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) squares += widen(held[i].at[k]) * widen(held[i].at[k]);
  });
  const float mean = join_row<Sum>(squares) / static_cast<float>(args.width);
  const float scale = rsqrtf(mean + args.eps);

  const std::int64_t angle = row % static_cast<unsigned>(args.positions) * (args.head_dim / 2);
  walk([&](int i, std::int64_t at) {
    if constexpr (kHeld == 0) held[i] = load_part<T, kCount>(x + at);  // its own: none has written
    Vector<T, kCount> value = normed<T, kCount>(held[i], load_part<T, kCount>(weights + at), scale);
    if (args.cos != nullptr) {
      value =
          rotated<T, kCount>(value, angles_at<kCount / 2>(args.cos + angle, args.sin + angle,
                                                          static_cast<int>(args.head_dim),
                                                          static_cast<unsigned>(at), side_by_side));
    }
    store_part<T, kCount>(x + at, value);
  });
}

template <typename T, int kCount>
void launch(const RmsNormRopeArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = (args.width + kCount - 1) / kCount;
  std::int64_t threads = kWarp;
  constexpr std::int64_t kWarpVectors = static_cast<std::int64_t>(kWarp) * kFew;
  if (vectors > kWarp * kMany) threads = (vectors + kWarpVectors - 1) / kWarpVectors * kWarp;
  if (threads > kMaxRowThreads) threads = kMaxRowThreads;
  const dim3 block(static_cast<unsigned>(threads),
                   static_cast<unsigned>(threads == kWarp ? kNarrowThreads / kWarp : 1));
  const dim3 grid(static_cast<unsigned>((args.rows * args.parts + block.y - 1) / block.y));
  constexpr std::int64_t kAngleBytes = kCount / 2 * sizeof(float);
  const auto lies_at = [&](const float* table) {
    return reinterpret_cast<std::uintptr_t>(table) % kAngleBytes == 0;
  };
  const bool side_by_side = args.head_dim % kCount == 0 && lies_at(args.cos) && lies_at(args.sin);
  if (vectors <= threads * kFew) {
    rms_norm_rope_kernel<T, kCount, kFew><<<grid, block, 0, stream>>>(args, side_by_side);
  } else if (vectors <= threads * kMany) {
    rms_norm_rope_kernel<T, kCount, kMany><<<grid, block, 0, stream>>>(args, side_by_side);
  } else {
    rms_norm_rope_kernel<T, kCount, 0><<<grid, block, 0, stream>>>(args, side_by_side);
  }
}

bool vectorised(const RmsNormRopeArgs& args) {
  return aligned(args.x) && aligned(args.weights[0]) && aligned(args.weights[1]) &&
         vectors_fit(args.dtype, args.width) && vectors_fit(args.dtype, args.x_stride);
}

}  // namespace

const char* rms_norm_rope_unsupported(const RmsNormRopeArgs& args) {
  constexpr std::int64_t kMaxHead = 65536;
  if (args.width < 2 || args.width % 2 != 0) return "the width is no even number from 2";
  if (args.parts != 1 && args.parts != 2) return "a row has 1 or 2 parts";
  if (args.rows < 0 || args.rows > kMaxBlocks / 2) return "more than 2^30 rows";
  if ((args.cos == nullptr) != (args.sin == nullptr)) return "cosines and sines come together";
  if (args.cos == nullptr) return nullptr;
  if (args.head_dim < 2 || args.head_dim % 2 != 0 || args.head_dim > kMaxHead ||
      args.width % args.head_dim != 0) {
    return "heads of an even size do not divide the width";
  }
  return args.positions < 1 || args.positions > kMaxBlocks ? "no positions, or more than 2^31 - 1"
                                                           : nullptr;
}

const char* rms_norm_rope(const RmsNormRopeArgs& args, CUstream_st* stream) {
  if (const char* reason = rms_norm_rope_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  with_device_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (vectorised(args)) {
      launch<T, kVectorBytes / sizeof(T)>(args, stream);
    } else {
      launch<T, 2>(args, stream);
    }
  });
  return launch_error();
}

}  // namespace diptych::kernels

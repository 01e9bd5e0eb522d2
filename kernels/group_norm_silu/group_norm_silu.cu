#include "kernels/device_vector.cuh"
#include "kernels/group_norm_silu/group_norm_silu.h"

namespace diptych::kernels {
namespace {

constexpr int kThreads = kGroupNormThreads;
constexpr std::int64_t kDepth = kGroupNormDepth;
constexpr int kMaxGroupWidth = 1024;
constexpr int kMaxGroupWarps = 16;

std::int64_t divided_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// How a block's threads lie over a run of pixels: each has one vector of channels and every
// `rows`-th pixel.
struct Cut {
  std::int64_t chunk;      // pixels of a block
  unsigned columns, rows;  // vectors of a pixel that a block takes, and pixels at a time
  dim3 grid;               // chunks, blocks beside each other, samples
};

template <int kCount>
Cut cut_of(std::int64_t samples, std::int64_t pixels, std::int64_t channels, std::int64_t chunk) {
  const std::int64_t vectors = channels / kCount;
  const std::int64_t columns = vectors < kThreads ? vectors : kThreads;
  return {
      chunk, static_cast<unsigned>(columns), static_cast<unsigned>(kThreads / columns),
      dim3(static_cast<unsigned>(divided_up(pixels, chunk)),
           static_cast<unsigned>(divided_up(vectors, columns)), static_cast<unsigned>(samples))};
}

// A thread's place: its pixels are first, first + rows, ... below `end`, of channels from
// `channel` on. Without work where channel is out of range.
struct Place {
  std::int64_t first, end, channel;
  bool works;
};

template <int kCount>
__device__ __forceinline__ Place place_of(std::int64_t pixels, std::int64_t channels,
                                          std::int64_t chunk, unsigned columns, unsigned rows) {
  const unsigned column = threadIdx.x % columns, row = threadIdx.x / columns;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * chunk;
  Place place;
  place.first = begin + row;
  place.end = begin + chunk < pixels ? begin + chunk : pixels;
  place.channel = (static_cast<std::int64_t>(blockIdx.y) * columns + column) * kCount;
  place.works = row < rows && place.channel < channels;
  return place;
}

// Of each channel, the sums of (x - shift) and of its square over the chunk's pixels, where shift
// is the channel's value in the first pixel.
template <int kCount>
__global__ void __launch_bounds__(kThreads)
    group_sums_kernel(const GroupNormTableArgs args, std::int64_t chunk, unsigned columns,
                      unsigned rows) {
  __shared__ float parts[kThreads][2 * kCount];
  const Place place = place_of<kCount>(args.pixels, args.channels, chunk, columns, rows);
  const float* x = args.x + blockIdx.z * args.sample_stride + place.channel;
  float sums[kCount] = {}, squares[kCount] = {};
  if (place.works) {
    const Vector<float, kCount> shift = load<float, kCount>(x);
#pragma unroll 8
    for (std::int64_t pixel = place.first; pixel < place.end; pixel += rows) {
      const Vector<float, kCount> value = load<float, kCount>(x + pixel * args.channels);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float apart = value.at[i] - shift.at[i];
        sums[i] += apart;
        squares[i] = fmaf(apart, apart, squares[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    parts[threadIdx.x][i] = sums[i];
    parts[threadIdx.x][kCount + i] = squares[i];
  }
  __syncthreads();
  if (threadIdx.x >= columns || !place.works) return;
  for (unsigned row = 1; row < rows; ++row) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[i] += parts[threadIdx.x + row * columns][i];
      squares[i] += parts[threadIdx.x + row * columns][kCount + i];
    }
  }
  float* out = args.sums + 2 * ((static_cast<std::int64_t>(blockIdx.z) * gridDim.x + blockIdx.x) *
                                    args.channels +
                                place.channel);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    out[2 * i] = sums[i];
    out[2 * i + 1] = squares[i];
  }
}

__device__ __forceinline__ double sum_warp(double value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// A block per group and sample, a warp per channel.
__global__ void __launch_bounds__(kMaxGroupWarps* kWarp)
    group_table_kernel(const GroupNormTableArgs args, std::int64_t chunks) {
  __shared__ double means[kMaxGroupWidth], spreads[kMaxGroupWidth];
  const int width = static_cast<int>(args.channels / args.groups);
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
  const std::int64_t sample = blockIdx.y, first = static_cast<std::int64_t>(blockIdx.x) * width;
  const auto pixels = static_cast<double>(args.pixels);

  // Of each channel, the mean and the sum of squared distances from it.
  for (int c = static_cast<int>(threadIdx.x) / kWarp; c < width; c += warps) {
    const auto* parts =
        reinterpret_cast<const float2*>(args.sums) + sample * chunks * args.channels + first + c;
    double sum = 0, squares = 0;
    for (std::int64_t chunk = lane; chunk < chunks; chunk += kWarp) {
      const float2 part = parts[chunk * args.channels];
      sum += static_cast<double>(part.x);
      squares += static_cast<double>(part.y);
    }
    sum = sum_warp(sum);
    squares = sum_warp(squares);
    if (lane == 0) {
      const float shift = args.x[sample * args.sample_stride + first + c];
      means[c] = static_cast<double>(shift) + sum / pixels;
      spreads[c] = squares - sum * (sum / pixels);
    }
  }
  __syncthreads();

  // Of the group; every thread alike.
  double mean = 0, spread = 0;
  for (int c = 0; c < width; ++c) mean += means[c];
  mean /= width;
  for (int c = 0; c < width; ++c) {
    spread += spreads[c] + pixels * (means[c] - mean) * (means[c] - mean);
  }
  const double variance = spread > 0 ? spread / (pixels * width) : spread * 0;  // NaN stays one
  const double inverse = 1 / sqrt(variance + static_cast<double>(args.eps));
  float* factors = args.table + sample * 2 * args.channels + first;
  for (int c = static_cast<int>(threadIdx.x); c < width; c += static_cast<int>(blockDim.x)) {
    const double factor = inverse * static_cast<double>(args.weight[first + c]);
    factors[c] = static_cast<float>(factor);
    factors[args.channels + c] =
        static_cast<float>(static_cast<double>(args.bias[first + c]) - mean * factor);
  }
}

__device__ __forceinline__ float to_tf32(float value) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}

template <int kCount, bool kSilu, bool kToTf32>
__global__ void __launch_bounds__(kThreads)
    group_norm_silu_kernel(const GroupNormSiluArgs args, std::int64_t chunk, unsigned columns,
                           unsigned rows) {
  const Place place = place_of<kCount>(args.pixels, args.channels, chunk, columns, rows);
  if (!place.works) return;
  const std::int64_t sample = blockIdx.z;
  const float* factors = args.table + sample * 2 * args.channels + place.channel;
  const Vector<float, kCount> factor = load<float, kCount>(factors);
  const Vector<float, kCount> offset = load<float, kCount>(factors + args.channels);
  const float* x = args.x + sample * args.x_sample_stride + place.channel;
  float* y = args.y + sample * args.y_sample_stride + place.channel;
  const std::int64_t step = rows;
  constexpr int kAtOnce = 4;
  for (std::int64_t pixel = place.first; pixel < place.end; pixel += kAtOnce * step) {
    // All on their way before the first is stored: y may be x.
    Vector<float, kCount> values[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t at = pixel + k * step;
      if (at < place.end) values[k] = load<float, kCount>(x + at * args.channels);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t at = pixel + k * step;
      if (at >= place.end) break;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        float value = fmaf(values[k].at[i], factor.at[i], offset.at[i]);
        if constexpr (kSilu) value = value / (1.0f + expf(-value));
        if constexpr (kToTf32) value = to_tf32(value);
        values[k].at[i] = value;
      }
      store<float, kCount>(y + at * args.channels, values[k]);
    }
  }
}

template <int kCount>
void launch_table(const GroupNormTableArgs& args, CUstream_st* stream) {
  const Cut cut = cut_of<kCount>(args.samples, args.pixels, args.channels,
                                 group_norm_chunk_pixels(args.pixels, args.channels));
  group_sums_kernel<kCount>
      <<<cut.grid, kThreads, 0, stream>>>(args, cut.chunk, cut.columns, cut.rows);
  const std::int64_t width = args.channels / args.groups;
  const auto warps = static_cast<unsigned>(width < kMaxGroupWarps ? width : kMaxGroupWarps);
  const dim3 groups(static_cast<unsigned>(args.groups), static_cast<unsigned>(args.samples));
  group_table_kernel<<<groups, warps * kWarp, 0, stream>>>(args, cut.grid.x);
}

template <int kCount, bool kSilu>
void launch_silu(const GroupNormSiluArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = args.channels / kCount;
  const std::int64_t rows = vectors < kThreads ? kThreads / vectors : 1;
  const Cut cut = cut_of<kCount>(args.samples, args.pixels, args.channels, rows * kDepth);
  if (args.round_to_tf32) {
    group_norm_silu_kernel<kCount, kSilu, true>
        <<<cut.grid, kThreads, 0, stream>>>(args, cut.chunk, cut.columns, cut.rows);
  } else {
    group_norm_silu_kernel<kCount, kSilu, false>
        <<<cut.grid, kThreads, 0, stream>>>(args, cut.chunk, cut.columns, cut.rows);
  }
}

template <int kCount>
void launch_silu(const GroupNormSiluArgs& args, CUstream_st* stream) {
  args.silu ? launch_silu<kCount, true>(args, stream) : launch_silu<kCount, false>(args, stream);
}

constexpr std::int64_t kMaxSamples = 65535;  // of a grid's y and z dimensions

const char* sizes_unsupported(std::int64_t samples, std::int64_t pixels, std::int64_t channels) {
  if (channels < 1) return "no channels";
  if (samples > kMaxSamples) return "more than 65535 samples";
  if (pixels / kDepth >= kMaxBlocks) return "more than 2^34 pixels";
  return nullptr;
}

bool in_vectors(std::int64_t channels, std::int64_t stride) {
  return vectors_fit(DType::f32, channels) && vectors_fit(DType::f32, stride);
}

}  // namespace

const char* group_norm_table_unsupported(const GroupNormTableArgs& args) {
  if (const char* reason = sizes_unsupported(args.samples, args.pixels, args.channels))
    return reason;
  if (args.groups < 1 || args.channels % args.groups != 0) return "the groups do not divide it";
  if (args.channels / args.groups > kMaxGroupWidth) return "more than 1024 channels a group";
  if (args.pixels < 1) return "no pixels";
  return nullptr;
}

const char* group_norm_table(const GroupNormTableArgs& args, CUstream_st* stream) {
  if (const char* reason = group_norm_table_unsupported(args)) return reason;
  if (args.samples == 0) return nullptr;
  if (aligned(args.x) && in_vectors(args.channels, args.sample_stride)) {
    launch_table<kVectorBytes / sizeof(float)>(args, stream);
  } else {
    launch_table<1>(args, stream);
  }
  return launch_error();
}

const char* group_norm_silu_unsupported(const GroupNormSiluArgs& args) {
  return sizes_unsupported(args.samples, args.pixels, args.channels);
}

const char* group_norm_silu(const GroupNormSiluArgs& args, CUstream_st* stream) {
  if (const char* reason = group_norm_silu_unsupported(args)) return reason;
  if (args.samples == 0 || args.pixels == 0) return nullptr;
  const bool vectors = aligned(args.x) && aligned(args.y) && aligned(args.table) &&
                       in_vectors(args.channels, args.x_sample_stride) &&
                       in_vectors(args.channels, args.y_sample_stride);
  if (vectors) {
    launch_silu<kVectorBytes / sizeof(float)>(args, stream);
  } else {
    launch_silu<1>(args, stream);
  }
  return launch_error();
}

}  // namespace diptych::kernels

// Quantised weights times up to 16 rows on tensor cores: a block for 16 outputs of all rows, the
// inputs dealt out to its warps. Multiplied one by one, the elements of a byte each would take
// longer than they take to come from memory. Here one instruction multiplies 16 x 16 of them with
// all rows, and what is left to a warp is to widen them, once for all rows.
#include "kernels/device_fetch.cuh"
#include "kernels/linear_row/linear_row_device.cuh"

namespace diptych::kernels {
namespace {

constexpr int kElements = 16;              // of a row that one lane takes in a step
constexpr int kStep = kParts * kElements;  // of a row that a warp multiplies in a step
// Of a row that a warp fetches at once: 128 bytes, of which memory gives more than of 64.
constexpr int kSteps = 2, kSpan = kSteps * kStep, kVectors = kSteps * kParts;
constexpr int kProducts =
    kElements / 4;  // instructions of a step, each with 4 of a lane's elements

// The 16-bit type that holds a row's elements exactly, and those of any quantised weight.
template <typename X>
struct Wide {
  using Type = X;
};
template <>
struct Wide<__nv_fp8_e4m3> {
  using Type = __half;
};

// 16 elements as pairs in the order of memory, the first in the lower half.
struct Pairs {
  unsigned at[kElements / 2];
};

__device__ __forceinline__ unsigned bits_of(__half2 pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ unsigned bits_of(__nv_bfloat162 pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}

// The elements `half` * 2 and the next of a word of four.
template <typename T>
__device__ __forceinline__ unsigned widened_pair(unsigned word, int half, __nv_fp8_e4m3 /*from*/) {
  const auto codes = static_cast<__nv_fp8x2_storage_t>(half == 0 ? word : word >> 16);
  const __half2 pair(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
  if constexpr (std::is_same_v<T, __half>) {
    return bits_of(pair);
  } else {  // four significant bits: what is cut off is 0
    const float2 wide = __half22float2(pair);
    return __byte_perm(__float_as_uint(wide.x), __float_as_uint(wide.y), 0x7632);
  }
}
// By the bits of a large number plus the element, as NVIDIA/FasterTransformer's cutlass_extensions
// (interleaved_numeric_conversion.h) does: conversions of integers are slow.
template <typename T>
__device__ __forceinline__ unsigned widened_pair(unsigned word, int half, std::int8_t /*from*/) {
  if constexpr (std::is_same_v<T, __half>) {
    // 1024 + 128 + value: its ten bits of fraction hold the biased byte.
    const unsigned biased =
        __byte_perm(word ^ 0x80808080u, 0x64646464u, half == 0 ? 0x4140 : 0x4342);
    const unsigned bias = 0x64806480u;
    return bits_of(__hsub2(*reinterpret_cast<const __half2*>(&biased),
                           *reinterpret_cast<const __half2*>(&bias)));
  } else {
    // 128 + the lower seven bits, which is all that its fraction holds, less 128 or, of a negative
    // element, 256.
    const unsigned spread = __byte_perm(word, 0, half == 0 ? 0x4140 : 0x4342);
    const unsigned value = (spread & 0x007f007fu) | 0x43004300u,
                   bias = (spread & 0x00800080u) | 0x43004300u;
    return bits_of(__hsub2(*reinterpret_cast<const __nv_bfloat162*>(&value),
                           *reinterpret_cast<const __nv_bfloat162*>(&bias)));
  }
}

// What a lane has of a row in one step.
template <typename S>
struct Held {
  uint4 words[sizeof(S)];
};

template <typename T, typename S>
__device__ __forceinline__ Pairs widened(const Held<S>& from) {
  Pairs pairs;
  const auto* words = reinterpret_cast<const unsigned*>(from.words);
#pragma unroll
  for (int i = 0; i < kElements / 2; ++i) {
    if constexpr (sizeof(S) == 2) {
      pairs.at[i] = words[i];
    } else {
      pairs.at[i] = widened_pair<T>(words[i / 2], i % 2, S{});
    }
  }
  return pairs;
}

// x is read by every block: through L1, or, of a HalfRow, from shared memory.
template <typename X>
__device__ __forceinline__ Held<X> load_x(const X* from, bool inside) {
  Held<X> held;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(X)); ++i) {
    held.words[i] = make_uint4(0, 0, 0, 0);
    if (inside) held.words[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  return held;
}

// Adds one step. Which elements of a row a lane hands to an instruction does not matter, as long as
// they are the same ones of the weights and of x: those that it has in a piece. The tensor cores
// cut their sums off (Fasi et al., Numerical behavior of NVIDIA tensor cores, PeerJ CS 7:e330), so
// they begin anew with every step, and what they have summed is added with rounding.
template <typename X, typename W, int kHalves>
__device__ __forceinline__ void add_step(float (&sums)[kHalves][4], const Held<W>& low,
                                         const Held<W>& high, const Held<X> (&x)[kHalves]) {
  using T = typename Wide<X>::Type;
  const Pairs a = widened<T>(low), b = widened<T>(high);
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const Pairs c = widened<T>(x[h]);
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      multiply<T>(part, a.at[2 * i], b.at[2 * i], a.at[2 * i + 1], b.at[2 * i + 1], c.at[2 * i],
                  c.at[2 * i + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[h][i] += part[i];
  }
}

// One row of bfloat16, stored as float16 times 2^exponent, which is exact but for elements below
// 2^-31 of its largest. Quantised weights become float16 in half the instructions that bfloat16
// takes.
struct HalfRow {
  const __half* x;  // in shared memory
  float scale;      // 2^exponent
};

// Elements that a row may have, and the shared memory that it takes: the largest of each warp, too.
constexpr std::int64_t kMostOfHalfRow = 24576;
constexpr int half_row_bytes(std::int64_t inputs) {
  constexpr std::int64_t kMostWarps = kMaxRowThreads / kWarp;
  return static_cast<int>(inputs * static_cast<std::int64_t>(sizeof(__half)) +
                          kMostWarps * static_cast<std::int64_t>(sizeof(unsigned)));
}

// Two elements, not below 0, as bits: the larger of each pair.
__device__ __forceinline__ unsigned larger_pair(const uint4& words) {
  constexpr unsigned kMagnitudes = 0x7fff7fffu;
  return __vmaxu2(__vmaxu2(words.x & kMagnitudes, words.y & kMagnitudes),
                  __vmaxu2(words.z & kMagnitudes, words.w & kMagnitudes));
}

__device__ __forceinline__ unsigned times_power(unsigned pair, float power) {
  return bits_of(__floats2half2_rn(__uint_as_float(pair << 16) * power,
                                   __uint_as_float(pair & 0xffff0000u) * power));
}

// By all threads of a block. `room`: half_row_bytes(inputs).
template <int kWarps>
__device__ __forceinline__ HalfRow make_half_row(const __nv_bfloat16* x, int inputs, uint4* room) {
  constexpr int kThreads = kWarps * kWarp, kHeld = 4;  // vectors in registers, of most rows all
  const int vectors = inputs / 8, thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const auto* from = reinterpret_cast<const uint4*>(x);
  auto* mosts = reinterpret_cast<unsigned*>(room + vectors);
  uint4 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = thread + i * kThreads;
    held[i] = at < vectors ? from[at] : make_uint4(0, 0, 0, 0);
  }
  unsigned pair = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) pair = __vmaxu2(pair, larger_pair(held[i]));
  for (int at = thread + kHeld * kThreads; at < vectors; at += kThreads)
    pair = __vmaxu2(pair, larger_pair(from[at]));
  unsigned most = __reduce_max_sync(kAllLanes, max(pair & 0xffffu, pair >> 16));
  if (lane == 0) mosts[thread / kWarp] = most;
  __syncthreads();
  most = __reduce_max_sync(kAllLanes, lane < kWarps ? mosts[lane] : 0u);

  // The largest becomes 2^14 to 2^15; of infinite ones the finite stay finite.
  const int exponent = max(static_cast<int>(most >> 7) - 127 - 14, -126);
  const float inverse = __uint_as_float(static_cast<unsigned>(127 - exponent) << 23);
  const auto put = [&](int at, const uint4& words) {
    room[at] = make_uint4(times_power(words.x, inverse), times_power(words.y, inverse),
                          times_power(words.z, inverse), times_power(words.w, inverse));
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = thread + i * kThreads;
    if (at < vectors) put(at, held[i]);
  }
  for (int at = thread + kHeld * kThreads; at < vectors; at += kThreads) put(at, from[at]);
  __syncthreads();
  return {reinterpret_cast<const __half*>(room),
          __uint_as_float(static_cast<unsigned>(127 + exponent) << 23)};
}

// In shared memory: what is on its way, then the warps' sums.
template <int kWarps, int kStages, int kHalves>
union Ring {
  uint4 stages[kWarps][kStages][kTile][kVectors];
  float parts[kWarps][kHalves * kEight][kTile];
};

// A warp takes every kWarps-th span of the block's rows, kStages of them on their way at once.
// Warps wait for each other only at the end and, with kAsHalf, while the row is converted. kHalves
// eights of rows; kAsHalf: one of bfloat16, see HalfRow.
template <typename X, typename W, int kWarps, int kStages, int kHalves, bool kAsHalf>
__global__ void __launch_bounds__(kWarps* kWarp) linear_tiles_kernel(const LinearRowArgs args) {
  let_next_start();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile;  // output
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, four = lane / kParts,
            place = lane % kParts;
  // What is read for outputs and rows that are not there is the last one again: their sums are
  // nobody's.
  const auto last = static_cast<int>(min(args.outputs - first, std::int64_t{kTile}) - 1);
  const W* weight = static_cast<const W*>(args.weight) + first * args.inputs;
  const X* x[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const std::int64_t row = min(std::int64_t{h * kEight + four}, args.rows - 1);
    x[h] = static_cast<const X*>(args.x) + row * args.inputs;
  }

  constexpr int kStride = kWarps * kSpan, kAtOnce = kWarp / kVectors, kRows = kHalves * kEight;
  const int inputs = static_cast<int>(args.inputs), begin = warp * kSpan;
  const int spans = begin < inputs ? (inputs - begin + kStride - 1) / kStride : 0;
  __shared__ Ring<kWarps, kStages, kHalves> shared;
  static_assert(sizeof(shared) <= 48 * 1024);  // without asking for more
  uint4(&own)[kStages][kTile][kVectors] = shared.stages[warp];
  // Odd outputs have their halves swapped: the lanes that read at once meet other banks.
  const auto column = [](int output, int vector) { return vector ^ (output % 2 * kParts); };
  const auto fetch_span = [&](int span) {
    if (span < spans) {
      const int vector = lane % kVectors, at = begin + span * kStride + vector * kElements;
#pragma unroll
      for (int i = 0; i < kTile / kAtOnce; ++i) {
        const int output = i * kAtOnce + lane / kVectors;
        fetch(&own[span % kStages][output][column(output, vector)],
              weight + static_cast<std::int64_t>(min(output, last)) * inputs + at, at < inputs);
      }
    }
    end_of_fetches();
  };
  using Row = std::conditional_t<kAsHalf, __half, X>;
  const Row* from[kHalves];
  const auto load_step = [&](Held<Row>(&to)[kHalves], int step) {
    const int at = begin + step / kSteps * kStride + step % kSteps * kStep + place * kElements;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) to[h] = load_x<Row>(from[h] + at, at < inputs);
  };

  for (int span = 0; span < kStages; ++span) fetch_span(span);
  await_predecessors();
  float row_scale = 1;
  if constexpr (kAsHalf) {
    extern __shared__ uint4 room[];
    const HalfRow row = make_half_row<kWarps>(x[0], inputs, room);
    from[0] = row.x;
    row_scale = row.scale;
  } else {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) from[h] = x[h];
  }
  float sums[kHalves][4] = {};
  Held<Row> rows[kSteps][kHalves];
  load_step(rows[0], 0);
#pragma unroll 1
  for (int span = 0; span < spans; ++span) {
    await_fetches<kStages - 1>();
    __syncwarp();  // lanes read what others have fetched
    const uint4(&stage)[kTile][kVectors] = own[span % kStages];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      load_step(rows[(s + 1) % kSteps], kSteps * span + s + 1);
      const int at = column(four, s * kParts + place);
      add_step<Row, W, kHalves>(sums, {{stage[four][at]}}, {{stage[four + 8][at]}}, rows[s]);
    }
    __syncwarp();
    fetch_span(span + kStages);
  }

  // The lane's sums are of the outputs `four` and `four` + 8, of the rows 2 * place and the next.
  await_fetches<0>();
  __syncthreads();  // the ring is read
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared.parts[warp][h * kEight + 2 * place + i % 2][four + i / 2 * 8] = sums[h][i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kTile; i += kWarps * kWarp) {
    const int row = i / kTile, output = i % kTile;
    if (row >= args.rows || first + output >= args.outputs) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared.parts[w][row][output];
    finish(args, row, first + output, sum * row_scale);
  }
}

// One row of bfloat16, of which a multiprocessor has room for two blocks.
template <int kWarps, int kStages>
bool takes_half_row(const LinearRowArgs& args) {
  constexpr int kOfSystem = 1024;  // bytes of each block (CUDA C++ Programming Guide)
  if (args.rows > 1 || args.inputs > kMostOfHalfRow) return false;
  constexpr auto kRing = static_cast<int>(sizeof(Ring<kWarps, kStages, 1>));
  const int bytes = kRing + half_row_bytes(args.inputs) + kOfSystem;
  return 2 * bytes <= device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
}

template <typename X, typename W, int kWarps, int kStages>
void launch(const LinearRowArgs& args, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>((args.outputs + kTile - 1) / kTile);
  if constexpr (std::is_same_v<X, __nv_bfloat16>) {
    if (takes_half_row<kWarps, kStages>(args)) {
      const auto kernel = linear_tiles_kernel<X, W, kWarps, kStages, 1, true>;
      const int bytes = half_row_bytes(args.inputs);
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           half_row_bytes(kMostOfHalfRow));
      return launch_chained({}, kernel, blocks, kWarps * kWarp, static_cast<std::size_t>(bytes),
                            stream, args);
    }
  }
  const auto kernel = args.rows <= kEight ? linear_tiles_kernel<X, W, kWarps, kStages, 1, false>
                                          : linear_tiles_kernel<X, W, kWarps, kStages, 2, false>;
  launch_chained({}, kernel, blocks, kWarps * kWarp, 0, stream, args);
}

template <typename X, typename W>
void launch_shape(const LinearRowArgs& args, CUstream_st* stream) {
  switch (args.shape) {
    case 1:
      return launch<X, W, 4, 2>(args, stream);
    case 2:
      return launch<X, W, 4, 4>(args, stream);
    default:
      // Where blocks are few, each has more warps and ends sooner.
      if (args.outputs > kMostOfFew) return launch<X, W, 8, 2>(args, stream);
      if constexpr (sizeof(X) == 1) {
        return launch<X, W, 16, 1>(args, stream);
      } else {
        return launch<X, W, 12, 2>(args, stream);
      }
  }
}

}  // namespace

void launch_linear_tiles(const LinearRowArgs& args, CUstream_st* stream) {
  const bool e4m3 = args.stored == Stored::e4m3, bf16 = args.dtype == DType::bf16;
  if (args.x_scales != nullptr) return launch_shape<__nv_fp8_e4m3, __nv_fp8_e4m3>(args, stream);
  if (e4m3 && bf16) return launch_shape<__nv_bfloat16, __nv_fp8_e4m3>(args, stream);
  if (e4m3) return launch_shape<__half, __nv_fp8_e4m3>(args, stream);
  if (bf16) return launch_shape<__nv_bfloat16, std::int8_t>(args, stream);
  launch_shape<__half, std::int8_t>(args, stream);
}

}  // namespace diptych::kernels

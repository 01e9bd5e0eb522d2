// Weights of 16 bits times 2 to 16 rows on tensor cores: a block for 16 or 32 outputs of all rows,
// the inputs dealt out to its warps. The tensor cores want lanes to hold eight outputs side by
// side. Read like that, a request has 64 bytes of each and memory gives less than it can, so a warp
// reads 128 bytes of four outputs at a time, and lanes exchange halves.
#include "kernels/linear_row/linear_row_device.cuh"

namespace diptych::kernels {
namespace {

constexpr int kSteps = 2;                             // of a span, by a vector of each lane
constexpr int kSpan = kSteps * kParts;                // vectors of a row that a warp reads at once
constexpr std::int64_t kElements = kVectorBytes / 2;  // of a vector

// How a product is cut. More warps a block where blocks are few, more outputs where they are many.
// The number of warps, which sums depend on, is up to the outputs alone.
struct Cut {
  int tiles, warps,
      blocks;  // of 16 outputs a block; warps of it; blocks a multiprocessor has room for
};
constexpr Cut kFew = {1, 12, 2}, kUsual = {1, 8, 3}, kMany = {2, 8, 2};
// Of 36 products of 16 rows by 4096 inputs on an H200: 6144 outputs took 0.49 ms in the usual cut
// and 0.56 in the next, 24576 outputs 1.80 and 1.76.
constexpr std::int64_t kFewestOfMany = 1024 * kTile;

__device__ __forceinline__ uint4 load_weights(const uint4* from, bool inside) {
  uint4 words = make_uint4(0, 0, 0, 0);
  if (inside) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(__cvta_generic_to_global(from)));
  }
  return words;
}

// Swaps the `second` of the lanes of an even four with the `first` of those of the next four.
__device__ __forceinline__ void exchange(unsigned& first, unsigned& second, bool even) {
  const unsigned got = __shfl_xor_sync(kAllLanes, even ? second : first, kParts);
  first = even ? first : got;
  second = even ? got : second;
}

// What a warp has read of kLoads times 8 outputs, in steps: a lane of an even four holds the first
// half of its own output's span and of the next one's, a lane of an odd four the second half of the
// one before and of its own. Afterwards step s of a lane is half s of its own output.
template <int kLoads>
__device__ __forceinline__ void exchange(uint4 (&span)[kSteps][kLoads], bool even) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    exchange(span[0][i].x, span[1][i].x, even);
    exchange(span[0][i].y, span[1][i].y, even);
    exchange(span[0][i].z, span[1][i].z, even);
    exchange(span[0][i].w, span[1][i].w, even);
  }
}

// kHalves eights of rows; as many spans on their way as registers have room for.
template <typename T, int kHalves, int kTiles, int kWarps, int kBlocks>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks)
    linear_plain_kernel(const LinearRowArgs args) {
  let_next_start();
  constexpr int kOutputs = kTiles * kTile, kLoads = kOutputs / 8, kRows = kHalves * kEight,
                kStride = kWarps * kSpan, kAhead = kHalves == 1 ? 2 : 1;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, four = lane / kParts,
            place = lane % kParts;
  const int vectors = static_cast<int>(args.inputs / kElements);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kOutputs;
  // What is read for outputs and rows that are not there is the last one again: their sums are
  // nobody's.
  const auto last = static_cast<unsigned>(min(args.outputs - first, std::int64_t{kOutputs}) - 1);
  const int part = four % kSteps * kParts + place;
  const uint4* weight =
      reinterpret_cast<const uint4*>(static_cast<const T*>(args.weight) + first * args.inputs) +
      part;
  const auto load_step = [&](uint4(&to)[kLoads], int at, int step) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const unsigned output =
          min(static_cast<unsigned>(8 * i + four / kSteps * kSteps + step), last);
      to[i] =
          load_weights(weight + output * static_cast<unsigned>(vectors) + at, at + part < vectors);
    }
  };
  const uint4* x[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const std::int64_t row = min(std::int64_t{h * kEight + four}, args.rows - 1);
    x[h] =
        reinterpret_cast<const uint4*>(static_cast<const T*>(args.x) + row * args.inputs) + place;
  }
  // x is read by every block: through L1.
  const auto load_x = [&](uint4(&to)[kHalves], int at) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      to[h] = make_uint4(0, 0, 0, 0);
      if (at + place < vectors) to[h] = x[h][at];
    }
  };

  uint4 spans[kAhead][kSteps][kLoads];
  const int begin = warp * kSpan;
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) load_step(spans[a][s], begin + a * kStride, s);
  }
  await_predecessors();
  uint4 rows[kSteps][kHalves];
  load_x(rows[0], begin);
  float sums[kTiles][kHalves][4] = {};
#pragma unroll 1
  for (int round = begin; round < vectors; round += kAhead * kStride) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const int at = round + a * kStride;
      exchange(spans[a], four % kSteps == 0);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        uint4(&words)[kLoads] = spans[a][s];
        load_x(rows[(s + 1) % kSteps], s + 1 < kSteps ? at + kParts : at + kStride);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const uint4 low = words[2 * t], high = words[2 * t + 1];
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            // The tensor cores cut their sums off: see linear_row_tiles.cu.
            const uint4 row = rows[s][h];
            float products[4] = {};
            multiply<T>(products, low.x, high.x, low.y, high.y, row.x, row.y);
            multiply<T>(products, low.z, high.z, low.w, high.w, row.z, row.w);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[t][h][i] += products[i];
          }
        }
        load_step(words, at + kAhead * kStride, s);
      }
    }
  }

  // The lane's sums are of the outputs `four` and `four` + 8, of the rows 2 * place and the next.
  constexpr int kPadded = kOutputs + 4;  // so that lanes meet other banks
  __shared__ float parts[kWarps][kRows][kPadded];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        parts[warp][h * kEight + 2 * place + i % 2][t * kTile + four + i / 2 * 8] = sums[t][h][i];
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kOutputs; i += kWarps * kWarp) {
    const int row = i / kOutputs, output = i % kOutputs;
    if (row >= args.rows || first + output >= args.outputs) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += parts[w][row][output];
    finish_as<T>(args, row, first + output, sum);
  }
}

template <typename T, int kHalves, Cut kCut>
void launch_cut(const LinearRowArgs& args, CUstream_st* stream) {
  constexpr int kOutputs = kCut.tiles * kTile;
  launch_chained({}, linear_plain_kernel<T, kHalves, kCut.tiles, kCut.warps, kCut.blocks>,
                 static_cast<unsigned>((args.outputs + kOutputs - 1) / kOutputs),
                 kCut.warps * kWarp, 0, stream, args);
}

template <typename T, int kHalves>
void launch(const LinearRowArgs& args, CUstream_st* stream) {
  if (args.outputs <= kMostOfFew) return launch_cut<T, kHalves, kFew>(args, stream);
  if (args.outputs < kFewestOfMany) return launch_cut<T, kHalves, kUsual>(args, stream);
  launch_cut<T, kHalves, kMany>(args, stream);
}

template <typename T>
void launch_rows(const LinearRowArgs& args, CUstream_st* stream) {
  if (args.rows <= kEight) return launch<T, 1>(args, stream);
  launch<T, 2>(args, stream);
}

}  // namespace

void launch_linear_plain(const LinearRowArgs& args, CUstream_st* stream) {
  if (args.dtype == DType::bf16) return launch_rows<__nv_bfloat16>(args, stream);
  launch_rows<__half>(args, stream);
}

}  // namespace diptych::kernels

#include "kernels/device_pipeline.cuh"
#include "kernels/host_hopper.h"
#include "kernels/int8_linear/int8_linear.h"

namespace diptych::kernels {

// How a block computes kRows rows of 128 outputs.
template <int kRows>
struct Int8LinearShape {
  static constexpr int kOutputs = 128, kGroupOutputs = kOutputs / kMultiplying;
  static constexpr int kPiece = 64;  // inputs: a swizzled row of x in shared memory
  static constexpr int kXBytes = kRows * kSwizzledBytes, kWeightBytes = kOutputs * kPiece;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kResultBytes = kRows * kSwizzledBytes;  // of a group
  static constexpr int kSharedBytes = 225 * 1024;  // of the 227 KiB that a block may have
  static constexpr int kStages =
      (kSharedBytes - kTileAlignment - kMultiplying * kResultBytes) / kStageBytes;
  using Stages = Pipeline<kStages, kStageBytes>;
};

namespace {

// The blocks of a cluster have neighbouring outputs of the same rows.
struct Place {
  int row, output;  // of a block's tile
};

template <int kRows>
__device__ __forceinline__ Place place_of(const Tiles& tiles, std::int64_t tile, unsigned block) {
  const TilePlace place = tile_place(tile, tiles.down, tiles.across);
  return {
      static_cast<int>(place.down * kRows),
      static_cast<int>((place.across * kClusterBlocks + block) * Int8LinearShape<kRows>::kOutputs)};
}

// By one thread of a block. Each block loads half of the rows of x for both, and its own weights.
template <int kRows>
__device__ __forceinline__ void fill_stages(typename Int8LinearShape<kRows>::Stages& pipeline,
                                            const CUtensorMap* x_map, const CUtensorMap* weight_map,
                                            const Tiles& tiles, int pieces, unsigned block) {
  using S = Int8LinearShape<kRows>;
  constexpr int kOwnRows = kRows / kClusterBlocks;
  const int own = static_cast<int>(block) * kOwnRows;
  for_tiles(tiles, [&](std::int64_t tile) {
    const Place place = place_of<kRows>(tiles, tile, block);
    pipeline.fill_pieces(pieces, [&](int piece, char* at, std::uint64_t* filled) {
      expect_bytes(filled, S::kStageBytes);
      load_tile_for(kAllOfCluster, at + own * kSwizzledBytes, x_map, filled, piece * S::kPiece,
                    place.row + own);
      load_tile(at + S::kXBytes, weight_map, filled, piece * S::kPiece, place.output);
    });
  });
}

// Two int8 in shared memory as two elements, exactly.
template <typename T>
__device__ __forceinline__ unsigned widen_pair(unsigned address) {
  using Pair = typename PairOf<T>::Type;
  unsigned short codes;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(codes) : "r"(address) : "memory");
  unsigned from, subtract;
  if constexpr (std::is_same_v<T, __half>) {
    // 0x6400 | u is 1024 + u; u is 128 more than the code.
    from = __byte_perm(codes ^ 0x8080u, 0x64u, 0x4140);
    subtract = 0x64806480u;
  } else {
    // 0x4300 | u is 128 + u for 7 bits; the sign bit beside it makes the other term 128 or 256.
    const unsigned biased = __byte_perm(codes, 0x43u, 0x4140);
    from = biased & 0xff7fff7fu;
    subtract = biased & 0xff80ff80u;
  }
  const Pair widened =
      __hsub2(reinterpret_cast<const Pair&>(from), reinterpret_cast<const Pair&>(subtract));
  return reinterpret_cast<const unsigned&>(widened);
}

// The weights of a piece that a thread multiplies: of its outputs, 16 inputs to a step.
template <int kSteps>
struct Widened {
  unsigned at[kSteps][4];
};

// `own`: the place of this thread's first pair of a step's inputs, in a row of 64 bytes whose
// 16-byte parts are swizzled by every second row. The row that is 8 further has the same order.
template <typename T, int kPiece, int kSteps>
__device__ __forceinline__ void widen_piece(Widened<kSteps>& to, const char* weights, int own,
                                            int lane) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const unsigned at = shared_address(weights) + own + (step ^ lane / 8) * 16;
    constexpr unsigned kBelow = 8 * kPiece, kBehind = 8;
    to.at[step][0] = widen_pair<T>(at);
    to.at[step][1] = widen_pair<T>(at + kBelow);
    to.at[step][2] = widen_pair<T>(at + kBehind);
    to.at[step][3] = widen_pair<T>(at + kBelow + kBehind);
  }
}

// What makes results of the sums of two outputs, the second 8 behind the first.
struct OutputScale {
  float scale[2], offset[2];
};
template <typename T>
__device__ __forceinline__ OutputScale scale_of(int output, const float* scales, const T* bias,
                                                int outputs) {
  OutputScale of;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool inside = output + 8 * i < outputs;
    of.scale[i] = inside ? scales[output + 8 * i] : 0.0f;
    of.offset[i] = inside && bias != nullptr ? widen(bias[output + 8 * i]) : 0.0f;
  }
  return of;
}

// A warp's 16 outputs of all rows, 16 rows at a time, to swizzled rows of 64 outputs: eight rows
// and eight, each with the first and the last 8 outputs.
template <typename T, int kCount>
__device__ __forceinline__ void put_results(const float (&sums)[kCount], const OutputScale& of,
                                            const char* results, int warp, int lane) {
  const int row = lane / 16 * 8 + lane % 8, part = 2 * warp + lane / 8 % 2;
  const unsigned to = shared_address(results) + row * kSwizzledBytes +
                      (part ^ row % kSwizzleRows) * static_cast<int>(kVectorBytes);
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) {
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      values[j] = sums[8 * i + j] * of.scale[j / 2 % 2] + of.offset[j / 2 % 2];
    const Vector<T, 8> rounded = round_all<T, 8>(values);
    const auto* words = reinterpret_cast<const unsigned*>(rounded.at);
    store_matrices<true>(to + i * 16 * kSwizzledBytes, words);
  }
}

// By a warpgroup, for 64 outputs of a tile.
template <typename T, int kRows>
__device__ __forceinline__ void multiply_tiles(typename Int8LinearShape<kRows>::Stages& pipeline,
                                               const CUtensorMap* y_map, const float* scales,
                                               const T* bias, const Tiles& tiles, int pieces,
                                               int outputs, const Worker& worker) {
  using S = Int8LinearShape<kRows>;
  constexpr int kSteps = S::kPiece / 16;  // of a product each
  const int group = worker.group, thread = worker.thread;
  const int warp = thread / kWarp, lane = thread % kWarp, four = lane / 4, pair = lane % 4;
  const int own = (group * S::kGroupOutputs + warp * 16 + four) * S::kPiece + 2 * pair;
  char* const results = pipeline.behind_stages() + group * S::kResultBytes;
  float sums[kRows / 2];
  Widened<kSteps> even, odd;  // of this piece and of the one that is multiplied
  for_tiles(tiles, [&](std::int64_t tile) {
    // Every warp reads weights of its own, so one lane in every warp releases a stage.
    pipeline.template multiply_pieces<2>(
        sums, pieces, lane, [&](const char* at, auto buffer, bool first) {
          Widened<kSteps>& weights = decltype(buffer)::value == 0 ? even : odd;
          widen_piece<T, S::kPiece>(weights, at + S::kXBytes, own, lane);
          const std::uint64_t x = tile_descriptor(at);
          begin_products();
#pragma unroll
          for (int k = 0; k < kSteps; ++k)
            multiply_registers<T>(sums, weights.at[k], x + k * kDescriptorStep, !first || k > 0);
        });
    const Place place = place_of<kRows>(tiles, tile, worker.block);
    const int first_output = place.output + group * S::kGroupOutputs;
    store_results(
        worker,
        [&] {
          put_results<T>(sums, scale_of(first_output + warp * 16 + four, scales, bias, outputs),
                         results, warp, lane);
        },
        [&] { store_tile(y_map, results, first_output, place.row); });
  });
  if (thread == 0) await_stores();
}

template <typename T, int kRows>
__global__ void DIPTYCH_CLUSTER_OF(kClusterBlocks) __launch_bounds__(kProductThreads, 1)
    int8_linear_kernel(const __grid_constant__ CUtensorMap x_map,
                       const __grid_constant__ CUtensorMap weight_map,
                       const __grid_constant__ CUtensorMap y_map, const float* scales,
                       const T* bias, const Tiles tiles, const int pieces, const int outputs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  using S = Int8LinearShape<kRows>;
  __shared__ StageBarriers<S::kStages> barriers;
  auto pipeline = S::Stages::begin(barriers, 1, kWarpgroup / kWarp);
  const Worker worker = Worker::here();
  if (worker.fills()) {
    leave_registers<40>();
    if (worker.thread == 0)
      fill_stages<kRows>(pipeline, &x_map, &weight_map, tiles, pieces, worker.block);
  } else {
    take_registers<232>();
    multiply_tiles<T, kRows>(pipeline, &y_map, scales, bias, tiles, pieces, outputs, worker);
  }
  // No block ends while another may still send to its shared memory.
  join_cluster();
#endif
}

template <typename T, int kRows>
const char* launch(const Int8LinearArgs& args, CUstream_st* stream) {
  using S = Int8LinearShape<kRows>;
  const auto element = args.dtype == DType::bf16 ? TileElement::bf16 : TileElement::f16;
  CUtensorMap x, weight, y;
  for (const char* error :
       {make_tile_map(&x, element, args.x, args.rows, args.inputs, args.x_stride,
                      kRows / kClusterBlocks),
        make_tile_map(&weight, TileElement::i8, args.weight, args.outputs, args.inputs, args.inputs,
                      S::kOutputs),
        make_tile_map(&y, element, args.y, args.rows, args.outputs, args.y_stride, kRows)}) {
    if (error != nullptr) return error;
  }
  const Tiles tiles =
      make_tiles(parts_of(args.rows, kRows), parts_of(args.outputs, kClusterBlocks * S::kOutputs));
  return launch_clusters(int8_linear_kernel<T, kRows>, tiles.clusters, S::kSharedBytes, stream, x,
                         weight, y, args.scales, static_cast<const T*>(args.bias), tiles,
                         static_cast<int>(parts_of(args.inputs, S::kPiece)),
                         static_cast<int>(args.outputs));
}

template <typename T>
const char* launch_shape(const Int8LinearArgs& args, CUstream_st* stream) {
  static_assert(kInt8LinearShapes == 3);
  if (args.shape == 0) return launch<T, kInt8LinearRows[0]>(args, stream);
  if (args.shape == 1) return launch<T, kInt8LinearRows[1]>(args, stream);
  return launch<T, kInt8LinearRows[2]>(args, stream);
}

}  // namespace

const char* int8_linear_unsupported(const Int8LinearArgs& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // coordinates of tiles are 32-bit
  if (args.shape < 0 || args.shape >= kInt8LinearShapes) return "there is no such shape";
  if (args.rows < 0) return "the number of rows is negative";
  if (args.inputs < 1 || args.outputs < 1) return "inputs or outputs is below 1";
  if (args.rows > kMost || args.inputs > kMost || args.outputs > kMost) return "sizes beyond 2^30";
  if (args.dtype == DType::f32) return "rows are not of bfloat16 or float16";
  if (args.rows > 1 && (args.x_stride < args.inputs || args.y_stride < args.outputs))
    return "rows overlap";
  for (const std::int64_t bytes :
       {args.inputs, args.outputs * 2, args.x_stride * 2, args.y_stride * 2}) {
    if (bytes % kVectorBytes != 0) return "rows do not begin at multiples of 16 bytes";
  }
  if (!aligned(args.x) || !aligned(args.weight) || !aligned(args.y)) {
    return "rows do not begin at multiples of 16 bytes";
  }
  return nullptr;
}

bool int8_linear_runs_here() {
  return has_hopper_code(int8_linear_kernel<__nv_bfloat16, kInt8LinearRows[0]>);
}

const char* int8_linear(const Int8LinearArgs& args, CUstream_st* stream) {
  if (const char* reason = int8_linear_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  return args.dtype == DType::bf16 ? launch_shape<__nv_bfloat16>(args, stream)
                                   : launch_shape<__half>(args, stream);
}

}  // namespace diptych::kernels

#include "kernels/device_pipeline.cuh"
#include "kernels/device_silu.cuh"
#include "kernels/gated_linear/gated_linear.h"
#include "kernels/host_hopper.h"

namespace diptych::kernels {
namespace {

// Of y, of a block; the blocks of a cluster lie one below the other.
constexpr int kTileRows = 128, kTile = 128;
constexpr int kPiece = 64;  // inputs: a swizzled row of shared memory
constexpr int kStages = 4;
constexpr int kGroupRows = kTileRows / kMultiplying;
constexpr int kTileBytes = kTile * kSwizzledBytes;  // of x, of gate rows or of up rows
constexpr int kStageBytes = 3 * kTileBytes;
constexpr int kResultBytes = kGroupRows * kSwizzledBytes;  // 64 rows by 64 columns of y
constexpr int kResults = kTile * 2 / kSwizzledBytes;       // of a warpgroup, side by side
constexpr int kSharedBytes =
    kStages * kStageBytes + kMultiplying * kResults * kResultBytes + kTileAlignment;
using GatedPipeline = Pipeline<kStages, kStageBytes>;

struct Place {
  int row, column;  // of a block's tile
};

__device__ __forceinline__ Place place_of(const Tiles& tiles, std::int64_t tile, unsigned block) {
  const TilePlace place = tile_place(tile, tiles.down, tiles.across);
  return {static_cast<int>((place.down * kClusterBlocks + block) * kTileRows),
          static_cast<int>(place.across * kTile)};
}

// By one thread of a block. Each block loads its own rows of x. The first one loads the rows of
// gate for both, the second one those of up.
[[maybe_unused]] __device__ __forceinline__ void fill_stages(GatedPipeline& pipeline,
                                                             const CUtensorMap* x_map,
                                                             const CUtensorMap* weight_map,
                                                             const Tiles& tiles, int pieces,
                                                             int inner, unsigned block) {
  for_tiles(tiles, [&](std::int64_t tile) {
    const Place place = place_of(tiles, tile, block);
    const int weight_row = place.column + (block == 0 ? 0 : inner);
    pipeline.fill_pieces(pieces, [&](int piece, char* at, std::uint64_t* filled) {
      expect_bytes(filled, kStageBytes);
      load_tile(at, x_map, filled, piece * kPiece, place.row);
      load_tile_for(kAllOfCluster, at + (1 + static_cast<int>(block)) * kTileBytes, weight_map,
                    filled, piece * kPiece, weight_row);
    });
  });
}

// silu(gate) * up of a warp's 16 rows, 16 columns at a time, to swizzled rows of shared memory.
template <typename T>
__device__ __forceinline__ void put_results(const float (&sums)[128], char* results, int warp,
                                            int lane) {
  const int row = warp * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < kTile / 16; ++i) {
    float gate[8], up[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      gate[j] = sums[8 * i + j];
      up[j] = sums[64 + 8 * i + j];
    }
    const Vector<T, 8> y = products(silu(round_all<T, 8>(gate)), round_all<T, 8>(up));
    const int part = 2 * i + lane / 16, parts = kSwizzledBytes / 16;
    const char* const at = results + part / parts * kResultBytes + row * kSwizzledBytes +
                           (part % parts ^ row % kSwizzleRows) * 16;
    __syncwarp();  // the activation branches by value
    store_matrices<false>(shared_address(at), reinterpret_cast<const unsigned*>(y.at));
  }
}

// By a warpgroup, for 64 rows of a tile: the sums of gate and of up lie side by side.
template <typename T>
__device__ __forceinline__ void multiply_tiles(GatedPipeline& pipeline, const CUtensorMap* y_map,
                                               const Tiles& tiles, int pieces,
                                               const Worker& worker) {
  const int group = worker.group, thread = worker.thread;
  char* const results = pipeline.behind_stages() + group * kResults * kResultBytes;
  float sums[128];
  for_tiles(tiles, [&](std::int64_t tile) {
    pipeline.multiply_pieces<1>(sums, pieces, thread, [&](const char* at, auto, bool first) {
      multiply_stage<T>(sums, at + group * kGroupRows * kSwizzledBytes, at + kTileBytes, first);
    });
    store_results(
        worker, [&] { put_results<T>(sums, results, thread / kWarp, thread % kWarp); },
        [&] {
          const Place place = place_of(tiles, tile, worker.block);
          for (int i = 0; i < kResults; ++i) {
            store_tile(y_map, results + i * kResultBytes, place.column + i * kPiece,
                       place.row + group * kGroupRows);
          }
        });
  });
  if (thread == 0) await_stores();
}

template <typename T>
__global__ void DIPTYCH_CLUSTER_OF(kClusterBlocks) __launch_bounds__(kProductThreads, 1)
    gated_linear_kernel(const __grid_constant__ CUtensorMap x_map,
                        const __grid_constant__ CUtensorMap weight_map,
                        const __grid_constant__ CUtensorMap y_map, const Tiles tiles,
                        const int pieces, const int inner) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  __shared__ StageBarriers<kStages> barriers;
  auto pipeline = GatedPipeline::begin(barriers, 1, 1);
  const Worker worker = Worker::here();
  if (worker.fills()) {
    leave_registers<40>();
    if (worker.thread == 0)
      fill_stages(pipeline, &x_map, &weight_map, tiles, pieces, inner, worker.block);
  } else {
    take_registers<232>();
    multiply_tiles<T>(pipeline, &y_map, tiles, pieces, worker);
  }
  // No block ends while another may still send to its shared memory.
  join_cluster();
#endif
}

template <typename T>
const char* launch(const GatedLinearArgs& args, CUstream_st* stream) {
  const auto element = args.dtype == DType::bf16 ? TileElement::bf16 : TileElement::f16;
  CUtensorMap x, weight, y;
  for (const char* error :
       {make_tile_map(&x, element, args.x, args.rows, args.inputs, args.x_stride, kTileRows),
        make_tile_map(&weight, element, args.weight, 2 * args.inner, args.inputs, args.inputs,
                      kTile),
        make_tile_map(&y, element, args.y, args.rows, args.inner, args.y_stride, kGroupRows)}) {
    if (error != nullptr) return error;
  }
  const Tiles tiles =
      make_tiles(parts_of(args.rows, kClusterBlocks * kTileRows), parts_of(args.inner, kTile));
  return launch_clusters(gated_linear_kernel<T>, tiles.clusters, kSharedBytes, stream, x, weight, y,
                         tiles, static_cast<int>(parts_of(args.inputs, kPiece)),
                         static_cast<int>(args.inner));
}

}  // namespace

const char* gated_linear_unsupported(const GatedLinearArgs& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // coordinates of tiles are 32-bit
  if (args.rows < 0) return "the number of rows is negative";
  if (args.inputs < 1 || args.inner < 1) return "inputs or the inner width is below 1";
  if (args.rows > kMost || args.inputs > kMost || args.inner > kMost) return "sizes beyond 2^30";
  if (args.dtype == DType::f32) return "rows are not of bfloat16 or float16";
  for (const std::int64_t step : {args.inputs, args.inner, args.x_stride, args.y_stride}) {
    if (step * element_size(args.dtype) % kVectorBytes != 0) {
      return "rows do not begin at multiples of 16 bytes";
    }
  }
  if (!aligned(args.x) || !aligned(args.weight) || !aligned(args.y)) {
    return "rows do not begin at multiples of 16 bytes";
  }
  return nullptr;
}

bool gated_linear_runs_here() {
  return has_hopper_code(gated_linear_kernel<__nv_bfloat16>);
}

const char* gated_linear(const GatedLinearArgs& args, CUstream_st* stream) {
  if (const char* reason = gated_linear_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  return args.dtype == DType::bf16 ? launch<__nv_bfloat16>(args, stream)
                                   : launch<__half>(args, stream);
}

}  // namespace diptych::kernels

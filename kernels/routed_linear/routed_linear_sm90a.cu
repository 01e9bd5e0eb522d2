#include "kernels/device_fetch.cuh"
#include "kernels/device_pipeline.cuh"
#include "kernels/host_hopper.h"
#include "kernels/routed_linear/routed_linear.h"
#include "kernels/row_sets.h"

namespace diptych::kernels {
namespace {

// Of a block; the blocks of a cluster lie one below the other.
constexpr int kTileRows = 128, kTileOutputs = 256;
static_assert(kClusterBlocks * kTileRows == kRoutedLinearTile && kTileOutputs == kRoutedLinearTile);
constexpr int kStages = 4;
constexpr int kGroupRows = kTileRows / kMultiplying;
constexpr int kBoxRows = 128;  // of weights in one transfer; one for each block of the cluster
constexpr int kBoxBytes = kBoxRows * kSwizzledBytes, kXBytes = kTileRows * kSwizzledBytes;
constexpr int kWeightBytes = kClusterBlocks * kBoxBytes, kStageBytes = kXBytes + kWeightBytes;
// A warp's results on their way out: 16 rows of 64 outputs, with a gap of 16 bytes.
constexpr int kResultColumns = 64, kWarpRows = kGroupRows * kWarp / kWarpgroup;
static_assert(kWarpRows == 16);
constexpr int kResultPitch = kResultColumns * 2 + static_cast<int>(kVectorBytes);
constexpr int kResultBytes = kWarpRows * kResultPitch;
constexpr int kWarps = kMultiplying * kWarpgroup / kWarp;
constexpr int kSharedBytes = kStages * kStageBytes + kWarps * kResultBytes + kTileAlignment;
using RoutedPipeline = Pipeline<kStages, kStageBytes>;

struct RoutedTiles {
  std::int64_t of_first;  // tiles below each other of the first set, before those of the second
  Tiles all;
};

// Of a block's tile.
struct Place {
  int set;
  std::int64_t first_listed, first_output;
};

[[maybe_unused]] __device__ __forceinline__ Place place_of(const RoutedTiles& tiles,
                                                           std::int64_t tile, unsigned block) {
  const TilePlace place = tile_place(tile, tiles.all.down, tiles.all.across);
  const int set = place.down < tiles.of_first ? 0 : 1;
  const std::int64_t of_set = set == 0 ? place.down : place.down - tiles.of_first;
  return {set, (of_set * kClusterBlocks + block) * kTileRows, place.across * kTileOutputs};
}

// Of a set's listed row; -1: there is none.
[[maybe_unused]] __device__ __forceinline__ std::int64_t row_of(const RoutedLinearArgs& args,
                                                                int set, std::int64_t listed) {
  const RowSet& rows = args.sets[set].rows;
  if (listed >= rows.count) return -1;
  if (rows.index == nullptr) return rows.first + listed;
  const std::int64_t row = rows.index[listed];
  if (row < 0 || row >= args.rows) __trap();
  return row;
}

// The rows of x that a thread fetches for a tile: 16 bytes of every 16th row, to their swizzled
// place. They may lie anywhere, which the accelerator cannot do.
template <typename X>
struct RowFetch {
  static constexpr int kParts = kSwizzledBytes / static_cast<int>(kVectorBytes);
  static constexpr int kPieceInputs = kSwizzledBytes / static_cast<int>(sizeof(X));
  static constexpr int kRowStep = kWarpgroup / kParts, kTurns = kTileRows / kRowStep;
  static_assert(kRowStep % kSwizzleRows == 0, "the place within a row is the same in each turn");

  int part, first_row, to;
  const X* from[kTurns];  // null: no such row

  __device__ __forceinline__ explicit RowFetch(int thread)
      : part(thread % kParts),
        first_row(thread / kParts),
        to(first_row * kSwizzledBytes +
           (part ^ first_row % kSwizzleRows) * static_cast<int>(kVectorBytes)) {}

  __device__ __forceinline__ void find_rows(const RoutedLinearArgs& args, const Place& place) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const std::int64_t row =
          row_of(args, place.set, place.first_listed + first_row + i * kRowStep);
      from[i] = row < 0 ? nullptr : static_cast<const X*>(args.x) + row * args.x_stride;
    }
  }

  __device__ __forceinline__ void fetch_piece(const RoutedLinearArgs& args, char* at,
                                              int piece) const {
    const std::int64_t input =
        static_cast<std::int64_t>(piece) * kPieceInputs + part * (kPieceInputs / kParts);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const bool inside = from[i] != nullptr && input < args.inputs;
      fetch(reinterpret_cast<uint4*>(at + to + i * kRowStep * kSwizzledBytes),
            inside ? static_cast<const void*>(from[i] + input) : args.x, inside);
    }
    end_of_fetches();
  }
};

// By a warpgroup. All of its threads fetch rows of x, and one starts the transfer of the weights. A
// thread arrives at a stage's barrier when it sees that its own part has come.
template <typename X>
__device__ __forceinline__ void fill_stages(RoutedPipeline& pipeline, const RoutedLinearArgs& args,
                                            const CUtensorMap* first_map,
                                            const CUtensorMap* second_map, const RoutedTiles& tiles,
                                            int pieces, const Worker& worker) {
  constexpr int kUnderWay = 2;  // pieces of x that are not awaited yet
  RowFetch<X> rows(worker.thread);
  std::int64_t fetched = 0;
  int awaited = 0;  // stage of the oldest piece of x that has not been awaited
  const auto hand_over = [&] {
    publish_shared();
    arrive_here(&pipeline.barriers.filled[awaited]);
    awaited = awaited + 1 == kStages ? 0 : awaited + 1;
  };
  const int block = static_cast<int>(worker.block);
  for_tiles(tiles.all, [&](std::int64_t tile) {
    const Place place = place_of(tiles, tile, worker.block);
    rows.find_rows(args, place);
    const CUtensorMap* const map = place.set == 0 ? first_map : second_map;
    const int weight_row = static_cast<int>(place.first_output) + block * kBoxRows;
    pipeline.fill_pieces(pieces, [&](int piece, char* at, std::uint64_t* filled) {
      if (worker.thread == 0) {
        expect_bytes(filled, kWeightBytes);
        load_tile_for(kAllOfCluster, at + kXBytes + block * kBoxBytes, map, filled,
                      piece * RowFetch<X>::kPieceInputs, weight_row);
      }
      rows.fetch_piece(args, at, piece);
      if (++fetched > kUnderWay) {
        await_fetches<kUnderWay>();
        hand_over();
      }
    });
  });
  await_fetches<0>();
  for (int left = fetched < kUnderWay ? static_cast<int>(fetched) : kUnderWay; left > 0; --left)
    hand_over();
}

// The rows of a warp's results: each of the first 16 lanes knows one.
struct ResultRows {
  std::int64_t own;  // -1: there is none
  float scales[2];   // of the rows lane / 4 and 8 further, whose sums this thread has
};
[[maybe_unused]] __device__ __forceinline__ ResultRows result_rows(const RoutedLinearArgs& args,
                                                                   const Place& place,
                                                                   const Worker& worker) {
  const int warp = worker.thread / kWarp, lane = worker.thread % kWarp;
  ResultRows rows;
  rows.own =
      row_of(args, place.set,
             place.first_listed + worker.group * kGroupRows + warp * kWarpRows + lane % kWarpRows);
  const float own_scale = args.x_scales == nullptr || rows.own < 0 ? 1.0f : args.x_scales[rows.own];
  rows.scales[0] = __shfl_sync(kAllLanes, own_scale, lane / 4);
  rows.scales[1] = __shfl_sync(kAllLanes, own_scale, lane / 4 + 8);
  return rows;
}

// Scales, offsets and rounds 64 columns of a warp's sums, 16 at a time, to rows in shared memory.
template <typename T>
__device__ __forceinline__ void put_results(const RoutedLinearArgs& args,
                                            const RoutedLinearArgs::Set& set, const float* sums,
                                            const ResultRows& rows, std::int64_t first_output,
                                            const char* results, int lane) {
  const T* const bias = static_cast<const T*>(set.bias);
#pragma unroll
  for (int i = 0; i < kResultColumns / 16; ++i) {
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {  // 8 columns, then the next 8; in each row q, then q + 8
      const std::int64_t output = first_output + i * 16 + j / 4 * 8 + 2 * (lane % 4) + j % 2;
      float sum = sums[8 * i + j];
      const bool inside = output < args.outputs;
      if (set.scales != nullptr && inside) sum *= set.scales[output];
      if (args.x_scales != nullptr) sum *= rows.scales[j / 2 % 2];
      if (bias != nullptr && inside) sum += widen(bias[output]);
      values[j] = sum;
    }
    const Vector<T, 8> rounded = round_all<T, 8>(values);
    const char* at = results + lane % 16 * kResultPitch + (2 * i + lane / 16) * 16;
    store_matrices<false>(shared_address(at), reinterpret_cast<const unsigned*>(rounded.at));
  }
}

// Eight lanes write a row's 128 bytes.
template <typename T>
__device__ __forceinline__ void write_results(const RoutedLinearArgs& args, const ResultRows& rows,
                                              std::int64_t first_output, const char* results,
                                              int lane) {
#pragma unroll
  for (int i = 0; i < kWarpRows / 4; ++i) {
    const int within = i * 4 + lane / 8, part = lane % 8;
    const std::int64_t row = __shfl_sync(kAllLanes, rows.own, within);
    const std::int64_t output = first_output + part * 8;
    if (row < 0 || output >= args.outputs) continue;
    const uint4 words =
        *reinterpret_cast<const uint4*>(results + within * kResultPitch + part * 16);
    store_words(static_cast<T*>(args.y) + row * args.y_stride + output, words);
  }
}

// By a warpgroup, for 64 rows of a tile.
template <typename T, typename X>
__device__ __forceinline__ void multiply_tiles(RoutedPipeline& pipeline,
                                               const RoutedLinearArgs& args,
                                               const RoutedTiles& tiles, int pieces,
                                               const Worker& worker) {
  const int group = worker.group, thread = worker.thread;
  const int warp = thread / kWarp, lane = thread % kWarp;
  char* const results =
      pipeline.behind_stages() + (group * kWarpgroup / kWarp + warp) * kResultBytes;
  float sums[128];
  for_tiles(tiles.all, [&](std::int64_t tile) {
    pipeline.multiply_pieces<1>(sums, pieces, thread, [&](const char* at, auto, bool first) {
      multiply_stage<X>(sums, at + group * kGroupRows * kSwizzledBytes, at + kXBytes, first);
    });
    const Place place = place_of(tiles, tile, worker.block);
    const ResultRows rows = result_rows(args, place, worker);
#pragma unroll
    for (int c = 0; c < kTileOutputs / kResultColumns; ++c) {
      const std::int64_t first_output = place.first_output + c * kResultColumns;
      __syncwarp();
      put_results<T>(args, args.sets[place.set], sums + 32 * c, rows, first_output, results, lane);
      __syncwarp();
      write_results<T>(args, rows, first_output, results, lane);
    }
  });
}

template <typename T, typename X>
__global__ void DIPTYCH_CLUSTER_OF(kClusterBlocks) __launch_bounds__(kProductThreads, 1)
    routed_linear_kernel(const __grid_constant__ RoutedLinearArgs args,
                         const __grid_constant__ CUtensorMap first_map,
                         const __grid_constant__ CUtensorMap second_map, const RoutedTiles tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  __shared__ StageBarriers<kStages> barriers;
  // Each thread's rows, and the weights' bytes.
  auto pipeline = RoutedPipeline::begin(barriers, kWarpgroup + 1, 1);
  const Worker worker = Worker::here();
  constexpr int kPieceInputs = RowFetch<X>::kPieceInputs;
  const int pieces = static_cast<int>((args.inputs + kPieceInputs - 1) / kPieceInputs);
  if (worker.fills()) {
    leave_registers<56>();  // 56 + 2 * 224: what 384 threads of 168 have
    fill_stages<X>(pipeline, args, &first_map, &second_map, tiles, pieces, worker);
  } else {
    take_registers<224>();
    multiply_tiles<T, X>(pipeline, args, tiles, pieces, worker);
  }
  // No block ends while another may still send to its shared memory.
  join_cluster();
#endif
}

template <typename T, typename X>
const char* launch(const RoutedLinearArgs& args, TileElement element, CUstream_st* stream) {
  CUtensorMap maps[kRowSets];
  for (int i = 0; i < kRowSets; ++i) {
    // Of a set without rows nothing is looked at.
    const int of = args.sets[i].rows.count > 0 ? i : 1 - i;
    if (const char* error = make_tile_map(&maps[i], element, args.sets[of].weight, args.outputs,
                                          args.inputs, args.inputs, kBoxRows)) {
      return error;
    }
  }
  RoutedTiles tiles{};
  tiles.of_first = parts_of(args.sets[0].rows.count, kClusterBlocks * kTileRows);
  const std::int64_t of_second = parts_of(args.sets[1].rows.count, kClusterBlocks * kTileRows);
  tiles.all = make_tiles(tiles.of_first + of_second, parts_of(args.outputs, kTileOutputs));
  return launch_clusters(routed_linear_kernel<T, X>, tiles.all.clusters, kSharedBytes, stream, args,
                         maps[0], maps[1], tiles);
}

template <typename T>
const char* launch_stored(const RoutedLinearArgs& args, TileElement plain, CUstream_st* stream) {
  return args.stored == Stored::plain ? launch<T, T>(args, plain, stream)
                                      : launch<T, __nv_fp8_e4m3>(args, TileElement::e4m3, stream);
}

}  // namespace

const char* routed_linear_unsupported(const RoutedLinearArgs& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // coordinates of tiles are 32-bit
  if (args.inputs < 1 || args.outputs < 1) return "inputs or outputs is below 1";
  if (args.inputs > kMost || args.outputs > kMost) return "sizes beyond 2^30";
  if (args.dtype == DType::f32) return "rows are not of bfloat16 or float16";
  if (args.stored == Stored::i8) return "weights are of int8";
  if (const char* reason = row_sets_unsupported(args.sets[0].rows, args.sets[1].rows, args.rows)) {
    return reason;
  }
  const bool coded = args.stored == Stored::e4m3;
  if (coded != (args.x_scales != nullptr)) return "scales come with e4m3 rows and with no others";
  const std::int64_t size = element_size(args.dtype), stored_size = coded ? 1 : size;
  constexpr const char* kReason = "rows do not begin and end at multiples of 16 bytes";
  for (const std::int64_t bytes : {args.inputs * stored_size, args.x_stride * stored_size,
                                   args.outputs * size, args.y_stride * size}) {
    if (bytes % kVectorBytes != 0) return kReason;
  }
  if (!aligned(args.x) || !aligned(args.y)) return kReason;
  for (const RoutedLinearArgs::Set& set : args.sets) {
    if (set.rows.count == 0) continue;
    if (!aligned(set.weight)) return kReason;
    if (coded != (set.scales != nullptr)) return "scales come with e4m3 weights and with no others";
  }
  return nullptr;
}

std::int64_t routed_linear_tiles() {
  return has_hopper_code(routed_linear_kernel<__nv_bfloat16, __nv_bfloat16>) ? clusters_at_once()
                                                                             : 0;
}

const char* routed_linear(const RoutedLinearArgs& args, CUstream_st* stream) {
  if (const char* reason = routed_linear_unsupported(args)) return reason;
  if (args.sets[0].rows.count + args.sets[1].rows.count == 0) return nullptr;
  return args.dtype == DType::bf16 ? launch_stored<__nv_bfloat16>(args, TileElement::bf16, stream)
                                   : launch_stored<__half>(args, TileElement::f16, stream);
}

}  // namespace diptych::kernels

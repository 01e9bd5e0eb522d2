#include <type_traits>

#include "kernels/conv3d/conv3d.h"
#include "kernels/device_fetch.cuh"
#include "kernels/device_pipeline.cuh"
#include "kernels/host_hopper.h"

namespace diptych::kernels {
namespace {

// Of a block; the blocks of a cluster lie one below the other. A tile's rows are places: those of
// y's pixels and, behind each row of pixels, as many more as the taps reach beyond it.
constexpr int kTilePlaces = 128;
constexpr int kMostColumnTaps = 3;
constexpr int kPiece = kConv3dPiece;  // inputs: a swizzled row of shared memory
[[maybe_unused]] constexpr int kPairLast = kConv3dPairMaps - 1;  // its weights follow g1's
constexpr int kGroupPlaces = kTilePlaces / kMultiplying;
// Pieces of x, which the taps of a row share, each one place further than the one before.
constexpr int kXStages = 3;
constexpr int kXPlaces = kTilePlaces + kMostColumnTaps - 1;
[[maybe_unused]] constexpr int kXBytes = kXPlaces * kSwizzledBytes;
constexpr int kXStageBytes = (kXPlaces + kSwizzleRows - 1) / kSwizzleRows * kTileAlignment;
// A warp's results on their way out: 16 pixels of up to 64 outputs, with a gap of 16 bytes.
constexpr int kMostResultColumns = 64, kWarpPlaces = kGroupPlaces * kWarp / kWarpgroup;
static_assert(kWarpPlaces == 16);
constexpr int kResultPitch = kMostResultColumns * 2 + static_cast<int>(kVectorBytes);
constexpr int kResultBytes = kWarpPlaces * kResultPitch;
constexpr int kWarps = kMultiplying * kWarpgroup / kWarp;

// Of a tile. With pairs it has two frames of its places and outputs, in sums of their own.
template <int kColumns, bool kOfPairs>
struct Shape {
  static constexpr int kOutputs = kColumns, kFrames = kOfPairs ? 2 : 1;
  static constexpr int kStages = kOfPairs ? 8 : 4;               // of weights
  static constexpr int kBoxOutputs = kOutputs / kClusterBlocks;  // one for each block
  static constexpr int kBoxBytes = kBoxOutputs * kSwizzledBytes;
  static constexpr int kStageBytes = kClusterBlocks * kBoxBytes;  // of weights
  static constexpr int kXStagesBytes = kXStages * kXStageBytes;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kXStagesBytes + kWarps * kResultBytes + kTileAlignment;
  // A warpgroup's sums of 64 places of a frame in a thread, and those of a block as vectors.
  static constexpr int kSums = kOutputs / 2;
  static constexpr int kResultColumns =
      kOutputs % kMostResultColumns == 0 ? kMostResultColumns : kMostResultColumns / 2;
  static_assert(kOutputs % kResultColumns == 0);
  static constexpr int kParts = kOutputs / kResultColumns;
  static constexpr std::int64_t kBlockVectors = kFrames * kSums / 4 * kMultiplying * kWarpgroup;
  using Weights = Pipeline<kStages, kStageBytes>;
};

// A thread's view of the stages of x, each of which a block fills and empties for itself.
struct XStages {
  StageBarriers<kXStages>& barriers;
  char* stages;
  Ring<kXStages> ring;
};
// Called by all threads, which wait for each other before they use it.
[[maybe_unused]] __device__ __forceinline__ XStages
begin_x_stages(StageBarriers<kXStages>& barriers, char* stages) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kXStages; ++i) {
      init_barrier(&barriers.filled[i], 1);
      init_barrier(&barriers.emptied[i], kMultiplying);
    }
  }
  return {barriers, stages, {}};
}
[[maybe_unused]] __device__ __forceinline__ char* stage_of(const XStages& x) {
  return x.stages + x.ring.stage * kXStageBytes;
}

// What clusters do: `whole` tiles in turn, and of the tiles behind them an equal share each.
struct Schedule {
  Tiles tiles;
  std::int64_t whole;
  int pieces;  // of x, of a tile

  __host__ __device__ std::int64_t shared() const { return tiles.count() - whole; }
};
// Of the pieces of the shared tiles, where the share of a cluster begins.
[[maybe_unused]] __device__ __forceinline__ std::int64_t share_of(const Schedule& schedule,
                                                                  std::int64_t cluster) {
  return cluster * schedule.shared() * schedule.pieces / schedule.tiles.clusters;
}

[[maybe_unused]] constexpr int kWholeTile = -1;
// A share may end one tile and begin the next.
constexpr int kClusterSlots = 2;

// Calls body(tile, first, end, slot) for pieces of the tiles of this cluster; slot: in the
// workspace, for the sums of a part of a tile, or kWholeTile.
template <typename Body>
__device__ __forceinline__ void for_work(const Schedule& schedule, const Body& body) {
  const std::int64_t cluster = blockIdx.x / kClusterBlocks;
  const bool shares = schedule.shared() > 0;
  std::int64_t tile = cluster, from = shares ? share_of(schedule, cluster) : 0;
  const std::int64_t to = shares ? share_of(schedule, cluster + 1) : 0;
  int next_slot = static_cast<int>(cluster) * kClusterSlots;
  // The body once: twice, it would take more registers than there are.
  while (tile < schedule.whole || from < to) {
    std::int64_t index = tile;
    int first = 0, end = schedule.pieces, slot = kWholeTile;
    if (tile < schedule.whole) {
      tile += schedule.tiles.clusters;
    } else {
      index = schedule.whole + from / schedule.pieces;
      first = static_cast<int>(from % schedule.pieces);
      const std::int64_t left = schedule.pieces - first, rest = to - from;
      end = first + static_cast<int>(left < rest ? left : rest);
      from += end - first;
      slot = next_slot++;
    }
    body(index, first, end, slot);
  }
}

// The places of a tile, of all blocks, and its outputs of one phase.
struct TileOfPhase {
  unsigned first_place;
  int first_output;
  int phase, frame, row, column;  // phase: by frame, row and column
};
// In 32 bits: divisions in 64 take long.
template <int kOutputs>
__device__ __forceinline__ TileOfPhase tile_of(const Conv3dArgs& args, const Tiles& tiles,
                                               unsigned tile) {
  const unsigned down = static_cast<unsigned>(tiles.down);
  const unsigned across = static_cast<unsigned>(tiles.across);
  const unsigned of_band = kTileBand * across, band = tile / of_band, within = tile % of_band;
  const unsigned rest = down - band * kTileBand, high = rest < kTileBand ? rest : kTileBand;
  const unsigned columns = (static_cast<unsigned>(args.outputs) + kOutputs - 1) / kOutputs;
  const unsigned place_across = within / high, place_down = band * kTileBand + within % high;
  const int phase = static_cast<int>(place_across / columns);
  const int side = args.side_phases > 1 ? 1 : 0;  // bits of a row or column
  return {place_down * (kClusterBlocks * kTilePlaces),
          static_cast<int>(place_across % columns) * kOutputs,
          phase,
          phase >> 2 * side,
          phase >> side & side,
          phase & side};
}

__host__ __device__ inline std::int64_t row_places(const Conv3dArgs& args) {
  return args.y_width + args.column_taps - 1;
}
// Of a phase.
__host__ __device__ inline std::int64_t places_of(const Conv3dArgs& args) {
  return args.frames * args.y_height * row_places(args);
}
struct PixelPlace {
  unsigned frame, row, column;
};
[[maybe_unused]] __device__ __forceinline__ PixelPlace pixel_place(const Conv3dArgs& args,
                                                                   unsigned place) {
  const unsigned width = static_cast<unsigned>(row_places(args));
  const unsigned height = static_cast<unsigned>(args.y_height);
  const unsigned row = place / width, frame = row / height;
  return {frame, row - frame * height, place - row * width};
}

// By one thread of a block. Each block loads its own places, and a half of the weights for both.
template <typename S>
__device__ __forceinline__ void fill_stages(XStages& x, typename S::Weights& weights,
                                            const Conv3dArgs& args, const CUtensorMap* x_map,
                                            const CUtensorMap* weight_map, const Schedule& schedule,
                                            unsigned block) {
  const int rows = static_cast<int>(args.row_taps), columns = static_cast<int>(args.column_taps);
  const int inputs = static_cast<int>(args.inputs), of_row = (inputs + kPiece - 1) / kPiece;
  const int frame_step = S::kFrames > 1 ? static_cast<int>(args.frames) : 1;
  for_work(schedule, [&](std::int64_t index, int first, int end, int) {
    const TileOfPhase tile =
        tile_of<S::kOutputs>(args, schedule.tiles, static_cast<unsigned>(index));
    const unsigned place = tile.first_place + block * kTilePlaces;
    // Of a block without places: of a clip behind the only one, where everything is 0.
    const bool any = place < places_of(args);
    const PixelPlace from = pixel_place(args, any ? place : 0);
    const ClipPlace at_first{tile.frame * inputs,
                             static_cast<int>(from.column) - static_cast<int>(args.left),
                             static_cast<int>(from.row) - static_cast<int>(args.top),
                             static_cast<int>(from.frame), any ? 0 : 1};
    const int of_phase = tile.phase % static_cast<int>(args.side_phases * args.side_phases);
    const int weight_row = tile.first_output + static_cast<int>(block) * S::kBoxOutputs;
    int row = first / of_row, input = first % of_row * kPiece;
    for (int piece = first; piece < end; ++piece) {
      std::uint64_t* const filled = &x.barriers.filled[x.ring.stage];
      await_phase(&x.barriers.emptied[x.ring.stage], x.ring.parity ^ 1);
      expect_bytes(filled, kXBytes);
      ClipPlace at = at_first;
      at.channel += input;
      at.frame += row / rows * frame_step;
      load_pixels(stage_of(x), x_map, filled, at, {tile.column, row % rows + tile.row, 0});
      x.ring.next();
      const int skipped = S::kFrames > 1 && row / rows == kPairLast ? rows : 0;
      weights.fill_pieces(columns, [&](int column, char* to, std::uint64_t* weights_filled) {
        expect_bytes(weights_filled, S::kStageBytes);
        load_box_for(kAllOfCluster, to + static_cast<int>(block) * S::kBoxBytes, weight_map,
                     weights_filled, input, (row + skipped) * columns + column, weight_row,
                     of_phase);
      });
      input += kPiece;
      if (input < inputs) continue;
      input = 0;
      ++row;
    }
  });
}

// Of a warpgroup's 64 places: the sums of some pieces of a tile, undefined if there are none. adds:
// to what is there.
template <typename T, typename S>
__device__ __forceinline__ void multiply_pieces(XStages& x, typename S::Weights& weights,
                                                float (&sums)[S::kSums], int pieces, bool adds,
                                                int column_taps, const Worker& worker) {
  int before = 0, x_before = 0;  // the stages whose products run
  const auto let_go_of_x = [&] {
    if (worker.thread == 0) arrive_here(&x.barriers.emptied[x_before]);
  };
  for (int piece = 0; piece < pieces; ++piece) {
    await_phase(&x.barriers.filled[x.ring.stage], x.ring.parity);
    // A tap begins a row of shared memory further: what is swizzled is the address itself.
    std::uint64_t a = tile_descriptor(stage_of(x) + worker.group * kGroupPlaces * kSwizzledBytes);
    for (int column = 0; column < column_taps; ++column) {
      const bool first = piece == 0 && column == 0;
      await_phase(&weights.barriers.filled[weights.ring.stage], weights.ring.parity);
      const std::uint64_t b = tile_descriptor(weights.stages + weights.ring.stage * S::kStageBytes);
      begin_products();
#pragma unroll
      for (int k = 0; k < kSwizzledBytes / 32; ++k)
        multiply_tile<T>(sums, a + k * kDescriptorStep, b + k * kDescriptorStep,
                         adds || !first || k > 0);
      end_of_products();
      if (!first) {
        await_products<1>();
        weights.release(before, worker.thread);
        if (column == 0) let_go_of_x();
      }
      before = weights.ring.stage;
      weights.ring.next();
      a += kSwizzledBytes >> 4;
    }
    x_before = x.ring.stage;
    x.ring.next();
  }
  await_products<0>();
  hold(sums);
  if (pieces <= 0) return;
  weights.release(before, worker.thread);
  let_go_of_x();
}

// Where a lane's pixel goes, lane % 16 of the warp's, and what is added to it. M: the type of both.
template <typename M>
struct Pixel {
  M* y;  // null: there is no such pixel
  const M* shortcut;
};
// frame: of those of a tile.
template <typename M, typename S>
__device__ __forceinline__ Pixel<M> pixel_at(const Conv3dArgs& args, const TileOfPhase& tile,
                                             unsigned place, int frame_of_tile) {
  if (place >= places_of(args)) return {nullptr, nullptr};
  const PixelPlace at = pixel_place(args, place);
  if (at.column >= args.y_width) return {nullptr, nullptr};
  const std::int64_t side = args.side_phases;
  const std::int64_t own_frame = std::int64_t{at.frame} * S::kFrames + frame_of_tile;
  const std::int64_t frame = own_frame * args.frame_phases + tile.frame;
  const std::int64_t row = frame * args.y_height * side + at.row * side + tile.row;
  const std::int64_t column = row * args.y_width * side + at.column * side + tile.column;
  const std::int64_t own = (own_frame * args.y_height + at.row) * args.y_width + at.column;
  return {static_cast<M*>(args.y) + column * args.outputs,
          args.shortcut == nullptr
              ? nullptr
              : static_cast<const M*>(args.shortcut) + own * args.shortcut_step * args.outputs};
}

// Offsets and rounds columns of a warp's sums, 16 at a time, to rows in shared memory. bias: of the
// first of these columns, or null.
template <typename T, int kResultColumns>
__device__ __forceinline__ void put_results(const float* sums, const T* bias, int columns,
                                            const char* results, int lane) {
#pragma unroll
  for (int i = 0; i < kResultColumns / 16; ++i) {
    float values[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // two columns of 8, then of the next 8; in rows q and q + 8
      const int column = i * 16 + j / 2 * 8 + 2 * (lane % 4);
      Vector<T, 2> offset{};
      if (bias != nullptr && column < columns)
        offset = *reinterpret_cast<const Vector<T, 2>*>(bias + column);
      values[2 * j] = sums[8 * i + 2 * j] + widen(offset.at[0]);
      values[2 * j + 1] = sums[8 * i + 2 * j + 1] + widen(offset.at[1]);
    }
    const Vector<T, 8> rounded = round_all<T, 8>(values);
    const char* at = results + lane % 16 * kResultPitch + (2 * i + lane / 16) * 16;
    store_matrices<false>(shared_address(at), reinterpret_cast<const unsigned*>(rounded.at));
  }
}

// Which results a lane writes: 8 outputs of a pixel in each turn, so that lanes side by side write
// the columns of one.
template <int kResultColumns>
struct LaneTurns {
  static constexpr int kLanes = kResultColumns / 8, kPixels = kWarp / kLanes;
  static constexpr int kCount = kWarpPlaces / kPixels;
  int lane;
  __device__ __forceinline__ int pixel(int turn) const { return turn * kPixels + lane / kLanes; }
  __device__ __forceinline__ int output() const { return lane % kLanes * 8; }
  // Of the pixel of a turn what lane pixel(turn) has.
  template <typename T>
  __device__ __forceinline__ T* of(T* own, int turn) const {
    return reinterpret_cast<T*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(own), pixel(turn)));
  }
};

// What the shortcut has for the outputs of a lane, of each of the pixels that it writes.
template <typename M, int kTurns>
struct Added {
  Vector<M, 8> of[kTurns];
};

// Of 8 outputs whose channels begin at `from`, the one of each that a phase takes.
template <typename M>
__device__ __forceinline__ Vector<M, 8> load_shortcut(const M* from, int step, int channel) {
  Vector<M, 8> added;
  if (step == 1) {
    added = *reinterpret_cast<const Vector<M, 8>*>(from);
  } else if (step == 2) {
    Vector<M, 8> two[2];
    two[0] = reinterpret_cast<const Vector<M, 8>*>(from)[0];
    two[1] = reinterpret_cast<const Vector<M, 8>*>(from)[1];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const Vector<M, 8>& of = two[j / 4];
      added.at[j] = channel == 0 ? of.at[2 * j % 8] : of.at[2 * j % 8 + 1];
    }
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) added.at[j] = from[j * step + channel];
  }
  return added;
}

template <typename M, int kTurns, typename Turns>
__device__ __forceinline__ void load_added(Added<M, kTurns>& added, const Conv3dArgs& args,
                                           const Pixel<M>& own, int phase, int first_output,
                                           const Turns& turns) {
  const int step = static_cast<int>(args.shortcut_step);
  const int channel = (phase + static_cast<int>(args.shortcut_first)) * step /
                      static_cast<int>(args.shortcut_phases);
  const int output = first_output + turns.output();
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const M* const from = turns.of(own.shortcut, i);
    if (from != nullptr && output < args.outputs)
      added.of[i] = load_shortcut(from + output * step, step, channel);
  }
}

template <typename T, typename M, int kTurns, typename Turns>
__device__ __forceinline__ void write_results(const Conv3dArgs& args, const Pixel<M>& own,
                                              const Added<M, kTurns>& added, int first_output,
                                              const char* results, const Turns& turns) {
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    M* const y = turns.of(own.y, i);
    const int output = first_output + turns.output();
    if (y == nullptr || output >= args.outputs) continue;
    const char* const at = results + turns.pixel(i) * kResultPitch + turns.output() * 2;
    const Vector<T, 8> made = *reinterpret_cast<const Vector<T, 8>*>(at);
    if constexpr (std::is_same_v<T, M>) {
      if (args.shortcut == nullptr) {
        store<M, 8>(y + output, made);
        continue;
      }
    }
    float sums[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sums[j] = widen(made.at[j]);
      if (args.shortcut != nullptr) sums[j] += widen(added.of[i].at[j]);
    }
    store<M, 8>(y + output, round_all<M, 8>(sums));
  }
}

// Sums of a warp's 16 places on their way to y, from `column` of the tile on.
template <typename T, typename M, int kResultColumns, int kColumns>
__device__ __forceinline__ void finish(const Conv3dArgs& args, const TileOfPhase& tile,
                                       const Pixel<M>& own, const float (&sums)[kColumns / 2],
                                       const T* bias, int column, char* results, int lane) {
  const LaneTurns<kResultColumns> turns{lane};
#pragma unroll
  for (int part = 0; part < kColumns / kResultColumns; ++part) {
    const int first_output = tile.first_output + column + part * kResultColumns;
    const T* const of_first = bias == nullptr ? nullptr : bias + first_output;
    Added<M, LaneTurns<kResultColumns>::kCount> added;  // on their way while results are rounded
    if (args.shortcut != nullptr) load_added(added, args, own, tile.phase, first_output, turns);
    __syncwarp();
    put_results<T, kResultColumns>(sums + kResultColumns / 2 * part, of_first,
                                   static_cast<int>(args.outputs) - first_output, results, lane);
    __syncwarp();
    write_results<T, M>(args, own, added, first_output, results, turns);
  }
}

// Of the sums in a slot of the workspace: thread by thread, four of each at a time.
template <typename S>
__device__ __forceinline__ float4* parts_in(const Conv3dArgs& args, std::int64_t slot,
                                            unsigned block, int thread) {
  return reinterpret_cast<float4*>(args.workspace) +
         (slot * kClusterBlocks + block) * S::kBlockVectors + thread;
}
[[maybe_unused]] constexpr int kVectorStep = kMultiplying * kWarpgroup;

// multiply_pieces() for both frames of pairs: the first two quarters of a tile's pieces make the
// sum and the difference of what is in both, each of the others adds what is in one. Without a
// branch around any of them, which would cost the products' overlap.
template <typename T, typename S>
__device__ __forceinline__ void multiply_pairs(XStages& x, typename S::Weights& weights,
                                               float (&sums)[S::kFrames][S::kSums], int first,
                                               int end, int quarter, int column_taps,
                                               const Worker& worker) {
  const auto multiply = [&](float(&into)[S::kSums], int part, bool adds) {
    const int from = max(first, part * quarter), to = min(end, (part + 1) * quarter);
    multiply_pieces<T, S>(x, weights, into, to - from, adds, column_taps, worker);
  };
  multiply(sums[0], 0, false);
  multiply(sums[1], 1, false);
  const bool any_both = first < quarter, any_differing = first < 2 * quarter && end > quarter;
#pragma unroll
  for (int i = 0; i < S::kSums; ++i) {
    const float both = any_both ? sums[0][i] : 0, differing = any_differing ? sums[1][i] : 0;
    sums[0][i] = both + differing;
    sums[1][i] = both - differing;
  }
  hold(sums[0]);
  hold(sums[1]);
  multiply(sums[0], 2, true);
  multiply(sums[1], 3, true);
}

// By a warpgroup, for 64 places of a tile. bias: in shared memory, or null.
template <typename T, typename M, typename S>
__device__ __forceinline__ void multiply_tiles(XStages& x, typename S::Weights& weights,
                                               char* results, const Conv3dArgs& args,
                                               const Schedule& schedule, const T* bias,
                                               const Worker& worker) {
  const int warp = worker.group * kWarpgroup / kWarp + worker.thread / kWarp;
  const int lane = worker.thread % kWarp, column_taps = static_cast<int>(args.column_taps);
  float sums[S::kFrames][S::kSums];
  for_work(schedule, [&](std::int64_t index, int first, int end, int slot) {
    if constexpr (S::kFrames > 1) {
      multiply_pairs<T, S>(x, weights, sums, first, end, schedule.pieces / kConv3dPairMaps,
                           column_taps, worker);
    } else {
      multiply_pieces<T, S>(x, weights, sums[0], end - first, /*adds=*/false, column_taps, worker);
    }
    if (slot != kWholeTile) {
      float4* to = parts_in<S>(args, slot, worker.block, warp * kWarp + lane);
#pragma unroll
      for (int frame = 0; frame < S::kFrames; ++frame) {
#pragma unroll
        for (int i = 0; i < S::kSums; i += 4, to += kVectorStep)
          *to = make_float4(sums[frame][i], sums[frame][i + 1], sums[frame][i + 2],
                            sums[frame][i + 3]);
      }
      return;
    }
    const TileOfPhase tile =
        tile_of<S::kOutputs>(args, schedule.tiles, static_cast<unsigned>(index));
    const unsigned place = tile.first_place + worker.block * kTilePlaces +
                           static_cast<unsigned>(warp * kWarpPlaces + lane % kWarpPlaces);
#pragma unroll
    for (int frame = 0; frame < S::kFrames; ++frame) {
      finish<T, M, S::kResultColumns, S::kOutputs>(
          args, tile, pixel_at<M, S>(args, tile, place, frame), sums[frame], bias, 0,
          results + warp * kResultBytes, lane);
    }
  });
}

template <typename T, typename M, typename S>
__global__ void DIPTYCH_CLUSTER_OF(kClusterBlocks) __launch_bounds__(kProductThreads, 1)
    conv3d_kernel(const __grid_constant__ Conv3dArgs args,
                  const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap weight_map, const Schedule schedule) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  __shared__ StageBarriers<S::kStages> barriers;
  __shared__ StageBarriers<kXStages> x_barriers;
  char* const x_stages = tiles_in_shared() + S::kStages * S::kStageBytes;
  char* const results = x_stages + S::kXStagesBytes;
  T* bias = nullptr;
  if (args.bias != nullptr) {
    bias = reinterpret_cast<T*>(results + kWarps * kResultBytes);
    for (int i = static_cast<int>(threadIdx.x); i < args.outputs; i += kProductThreads)
      bias[i] = static_cast<const T*>(args.bias)[i];
  }
  auto x = begin_x_stages(x_barriers, x_stages);
  auto weights = S::Weights::begin(barriers, 1, 1);
  const Worker worker = Worker::here();
  if (worker.fills()) {
    leave_registers<56>();  // 56 + 2 * 224: what 384 threads of 168 have
    if (worker.thread == 0)
      fill_stages<S>(x, weights, args, &x_map, &weight_map, schedule, worker.block);
  } else {
    take_registers<224>();
    multiply_tiles<T, M, S>(x, weights, results, args, schedule, bias, worker);
  }
  // No block ends while another may still send to its shared memory.
  join_cluster();
#endif
}

// Of the tiles that clusters share: adds what they have of 16 places and a part of the outputs. A
// block is one warp; blockIdx.x: the warp of a tile, counted through these tiles; blockIdx.y: the
// outputs, counted through the frames of a tile.
template <typename T, typename M, typename S>
__global__ void __launch_bounds__(kWarp)
    finish_shared_tiles(const __grid_constant__ Conv3dArgs args, const Schedule schedule) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ __align__(16) char results[kResultBytes];
  constexpr int kColumns = S::kResultColumns, kVectors = kColumns / 2 / 4;
  const int lane = static_cast<int>(threadIdx.x), part = static_cast<int>(blockIdx.y);
  const int of_tile = static_cast<int>(blockIdx.x) % (kClusterBlocks * kWarps);
  const unsigned block = static_cast<unsigned>(of_tile / kWarps);
  const int warp = of_tile % kWarps;
  const std::int64_t shared = blockIdx.x / (kClusterBlocks * kWarps);
  const std::int64_t first = shared * schedule.pieces, end = first + schedule.pieces;
  // The cluster that has the tile's first piece.
  std::int64_t cluster = shared * schedule.tiles.clusters / schedule.shared();
  while (share_of(schedule, cluster + 1) <= first) ++cluster;
  float sums[4 * kVectors] = {};
#pragma unroll 4
  for (; cluster < schedule.tiles.clusters; ++cluster) {
    const std::int64_t from = share_of(schedule, cluster);
    if (from >= end) break;
    if (from == share_of(schedule, cluster + 1)) continue;  // fewer pieces than clusters
    // Behind another tile's end.
    const std::int64_t slot = cluster * kClusterSlots + (from < first ? 1 : 0);
    const float4* const parts = parts_in<S>(args, slot, block, warp * kWarp + lane) +
                                static_cast<std::int64_t>(part) * kVectors * kVectorStep;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 four = parts[i * kVectorStep];
      sums[4 * i] += four.x;
      sums[4 * i + 1] += four.y;
      sums[4 * i + 2] += four.z;
      sums[4 * i + 3] += four.w;
    }
  }
  const TileOfPhase tile =
      tile_of<S::kOutputs>(args, schedule.tiles, static_cast<unsigned>(schedule.whole + shared));
  const unsigned place = tile.first_place + block * kTilePlaces +
                         static_cast<unsigned>(warp * kWarpPlaces + lane % kWarpPlaces);
  const Pixel<M> pixel = pixel_at<M, S>(args, tile, place, part / S::kParts);
  finish<T, M, kColumns, kColumns>(args, tile, pixel, sums, static_cast<const T*>(args.bias),
                                   part % S::kParts * kColumns, results, lane);
#endif
}

// Calls body(Shape) with the width of tiles that leaves the fewest of their columns empty, the
// widest of these. The narrowest is for calls that fill no other.
template <typename Body>
auto with_shape(const Conv3dArgs& args, const Body& body) {
  const auto columns = [&](std::int64_t width) { return parts_of(args.outputs, width) * width; };
  if (args.pairs) {
    if (columns(128) <= columns(96)) return body(Shape<128, true>{});
    return body(Shape<96, true>{});
  }
  if (args.outputs <= 96) return body(Shape<96, false>{});
  if (columns(256) <= columns(192)) return body(Shape<256, false>{});
  return body(Shape<192, false>{});
}

template <typename S>
Schedule schedule_of(const Conv3dArgs& args) {
  const std::int64_t down = parts_of(places_of(args), kClusterBlocks * kTilePlaces);
  const std::int64_t across = parts_of(args.outputs, S::kOutputs) * args.phases();
  const std::int64_t pieces = args.frame_taps * args.row_taps * parts_of(args.inputs, kPiece);
  const std::int64_t clusters = clusters_at_once<>(), count = down * across;
  const std::int64_t idle = (clusters - count % clusters) % clusters;  // at the last tiles
  // The products in whose time the sums come and go, and the share of the whole below which
  // sharing gains nothing: with idle multiprocessors the others are clocked higher.
  constexpr std::int64_t kCost = 28, kLeastShare = 8;
  const bool shares = idle * pieces * args.column_taps > kCost * clusters &&
                      kLeastShare * idle > parts_of(count, clusters) * clusters;
  return {{down, across, shares ? clusters : std::min(count, clusters)},
          shares ? count - count % clusters : count,
          static_cast<int>(pieces)};
}

template <typename T, typename M, typename S>
const char* launch(const Conv3dArgs& args, CUstream_st* stream) {
  const auto element = args.dtype == DType::bf16 ? TileElement::bf16 : TileElement::f16;
  const std::int64_t taps = args.weight_frames() * args.row_taps * args.column_taps;
  const int top = static_cast<int>(args.top), left = static_cast<int>(args.left);
  const PixelColumns pixels{
      args.x,
      {args.frame_phases * args.inputs, args.width, args.height, args.x_frames()},
      {-left, -top, 0},
      {static_cast<int>(row_places(args) - args.width) - left,
       static_cast<int>(args.y_height - args.height) - top, 0},
      kXPlaces};
  const Boxes<4> weights{args.weight,
                         {args.inputs, taps, args.outputs, args.side_phases * args.side_phases},
                         {args.inputs, args.weight_stride, args.outputs * args.weight_stride},
                         {kPiece, 1, S::kBoxOutputs, 1}};
  CUtensorMap x, weight;
  for (const char* error :
       {make_pixel_map(&x, element, pixels), make_box_map(&weight, element, weights)}) {
    if (error != nullptr) return error;
  }
  Schedule schedule = schedule_of<S>(args);
  if (args.workspace == nullptr) {
    schedule.whole = schedule.tiles.count();
    schedule.tiles.clusters = std::min(schedule.whole, schedule.tiles.clusters);
  }
  const auto shared_bytes =
      S::kSharedBytes + static_cast<int>(args.outputs * element_size(args.dtype));
  const char* error = launch_clusters(conv3d_kernel<T, M, S>, schedule.tiles.clusters, shared_bytes,
                                      stream, args, x, weight, schedule);
  if (error != nullptr || schedule.shared() == 0) return error;
  const dim3 warps(static_cast<unsigned>(schedule.shared() * kClusterBlocks * kWarps),
                   S::kFrames * S::kParts);
  finish_shared_tiles<T, M, S><<<warps, kWarp, 0, stream>>>(args, schedule);
  return launch_error();
}

template <typename T, typename M = T>
const char* launch_of(const Conv3dArgs& args, CUstream_st* stream) {
  return with_shape(args, [&](auto shape) { return launch<T, M, decltype(shape)>(args, stream); });
}

template <typename S>
std::int64_t workspace_of(const Conv3dArgs& args) {
  const Schedule schedule = schedule_of<S>(args);
  if (schedule.shared() == 0) return 0;
  return schedule.tiles.clusters * kClusterSlots * kClusterBlocks * S::kBlockVectors *
         static_cast<std::int64_t>(sizeof(float4));
}

}  // namespace

const char* conv3d_unsupported(const Conv3dArgs& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;    // coordinates are 32-bit
  constexpr std::int64_t kMostTaps = 8, kMostPadding = 8;  // corners are of five bits
  if (args.column_taps > kMostColumnTaps) return "a kernel has more than 3 columns";
  for (const std::int64_t size :
       {args.frames, args.height, args.width, args.inputs, args.y_height, args.y_width}) {
    if (size < 1) return "a size is below 1";
    if (size > kMost) return "a size is above 2^30";
  }
  if (args.outputs < 1 || args.outputs > kConv3dMostOutputs)
    return "outputs are not from 1 to 4096";
  if (args.y_height > kMost / args.y_width ||
      args.y_frames() > kMost / (args.y_height * args.y_width))
    return "more than 2^30 pixels";
  for (const std::int64_t taps : {args.frame_taps, args.row_taps, args.column_taps}) {
    if (taps < 1 || taps > kMostTaps) return "a kernel's side is not from 1 to 8";
  }
  for (const std::int64_t padding :
       {args.top, args.left, args.y_height + args.row_taps - 1 - args.top - args.height,
        args.y_width + args.column_taps - 1 - args.left - args.width}) {
    if (padding < -kMostPadding || padding > kMostPadding) return "a padding is not from -8 to 8";
  }
  for (const std::int64_t phases : {args.frame_phases, args.side_phases}) {
    if (phases != 1 && phases != 2) return "phases are not 1 or 2";
  }
  if (args.pairs &&
      (args.frame_taps != kConv3dPairMaps || args.frame_phases > 1 || args.side_phases > 1)) {
    return "pairs of frames have four taps and no phases";
  }
  if (args.frame_phases > 1 && args.inputs % kPiece != 0)
    return "the inputs of two frames are not multiples of 64";
  if (args.shortcut != nullptr &&
      (args.shortcut_step < 1 || args.shortcut_phases < 1 || args.shortcut_first < 0 ||
       args.shortcut_first + args.phases() > args.shortcut_phases)) {
    return "the shortcut has no such phases";
  }
  if (args.dtype == DType::f32) return "maps are not of bfloat16 or float16";
  if (args.y_dtype != args.dtype && (args.y_dtype != DType::f32 || args.dtype != DType::f16))
    return "results of this dtype";
  constexpr const char* kReason = "pixels do not begin and end at multiples of 16 bytes";
  if (args.weight_stride < args.weight_frames() * args.row_taps * args.column_taps * args.inputs)
    return "weights overlap";
  for (const std::int64_t step : {args.inputs, args.outputs, args.weight_stride}) {
    if (step * element_size(args.dtype) % kVectorBytes != 0) return kReason;
  }
  for (const void* at : {args.x, args.weight, static_cast<const void*>(args.y), args.shortcut}) {
    if (!aligned(at)) return kReason;
  }
  if (reinterpret_cast<std::uintptr_t>(args.bias) % 4 != 0)
    return "the bias does not begin at a multiple of 4 bytes";
  return nullptr;
}

bool conv3d_runs_here() {
  return has_hopper_code(conv3d_kernel<__nv_bfloat16, __nv_bfloat16, Shape<256, false>>);
}

std::int64_t conv3d_workspace(const Conv3dArgs& args) {
  return with_shape(args, [&](auto shape) { return workspace_of<decltype(shape)>(args); });
}

const char* conv3d(const Conv3dArgs& args, CUstream_st* stream) {
  if (const char* reason = conv3d_unsupported(args)) return reason;
  if (args.dtype == DType::bf16) return launch_of<__nv_bfloat16>(args, stream);
  return args.y_dtype == DType::f32 ? launch_of<__half, float>(args, stream)
                                    : launch_of<__half>(args, stream);
}

}  // namespace diptych::kernels

#include <algorithm>

#include "kernels/device_fetch.cuh"
#include "kernels/device_hopper.cuh"
#include "kernels/host_hopper.h"
#include "kernels/routed_linear/routed_linear.h"
#include "kernels/row_sets.h"

namespace diptych::kernels {
namespace {

constexpr int kBlocks = 2;                          // of a cluster, one below the other
constexpr int kTileRows = 128, kTileOutputs = 256;  // of a block
static_assert(kBlocks * kTileRows == kRoutedLinearTile && kTileOutputs == kRoutedLinearTile);
constexpr int kStages = 4;
constexpr int kMultiplying = 2;  // warpgroups
constexpr int kThreads = (1 + kMultiplying) * kWarpgroup;
constexpr int kBoxRows = 128;  // of weights in one transfer; one for each block of the cluster
constexpr int kBoxBytes = kBoxRows * kSwizzledBytes, kXBytes = kTileRows * kSwizzledBytes;
constexpr int kWeightBytes = kBlocks * kBoxBytes, kStageBytes = kXBytes + kWeightBytes;
constexpr int kAlignment = kSwizzleRows * kSwizzledBytes;
// A warp's results on their way out: 16 rows of 64 outputs, with a gap of 16 bytes.
constexpr int kResultColumns = 64, kWarpRows = 16;
constexpr int kResultPitch = kResultColumns * 2 + static_cast<int>(kVectorBytes);
constexpr int kResultBytes = kWarpRows * kResultPitch;
constexpr int kWarps = kMultiplying * kWarpgroup / kWarp;
constexpr int kSharedBytes = kStages * kStageBytes + kWarps * kResultBytes + kAlignment;

struct Tiles {
  std::int64_t of_first, down, across,
      clusters;  // of_first: tiles below each other of the first set
  __host__ __device__ std::int64_t count() const { return down * across; }
};

// Of a block's tile.
struct Place {
  int set;
  std::int64_t first_listed, first_output;
};

template <typename T, typename X>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kThreads, 1)
    routed_linear_kernel(const __grid_constant__ RoutedLinearArgs args,
                         const __grid_constant__ CUtensorMap first_map,
                         const __grid_constant__ CUtensorMap second_map, const Tiles tiles) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  extern __shared__ char unaligned[];
  __shared__ std::uint64_t filled[kStages], emptied[kStages];
  char* const stages = reinterpret_cast<char*>(
      (reinterpret_cast<std::uintptr_t>(unaligned) + kAlignment - 1) / kAlignment * kAlignment);
  const unsigned block = block_in_cluster();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&filled[i], kWarpgroup + 1);  // each thread's rows, and the weights' bytes
      init_barrier(&emptied[i], kBlocks * kMultiplying);
    }
    publish_barriers();
  }
  join_cluster();

  constexpr int kUnderWay = 2;  // pieces of x that are not awaited yet
  constexpr int kGroupRows = kTileRows / kMultiplying;
  constexpr int kPieceInputs = kSwizzledBytes / static_cast<int>(sizeof(X));
  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int pieces = static_cast<int>((args.inputs + kPieceInputs - 1) / kPieceInputs);
  const auto place_of = [&](std::int64_t tile) -> Place {
    const TilePlace place = tile_place(tile, tiles.down, tiles.across);
    const int set = place.down < tiles.of_first ? 0 : 1;
    const std::int64_t of_set = set == 0 ? place.down : place.down - tiles.of_first;
    return {set, (of_set * kBlocks + block) * kTileRows, place.across * kTileOutputs};
  };
  // Of the call, of a set's listed row; -1: none.
  const auto row_of = [&](int of, std::int64_t listed) -> std::int64_t {
    const RowSet& rows = args.sets[of].rows;
    if (listed >= rows.count) return -1;
    if (rows.index == nullptr) return rows.first + listed;
    const std::int64_t row = rows.index[listed];
    if (row < 0 || row >= args.rows) __trap();
    return row;
  };
  const std::int64_t first_tile = blockIdx.x / kBlocks;
  Ring<kStages> ring;

  if (group == kMultiplying) {
    leave_registers<56>();  // 56 + 2 * 224: what 384 threads of 168 have
    // Each thread fetches 16 bytes of every 16th row.
    constexpr int kParts = kSwizzledBytes / static_cast<int>(kVectorBytes);
    constexpr int kRowStep = kWarpgroup / kParts, kTurns = kTileRows / kRowStep;
    const int part = thread % kParts, first_row = thread / kParts;
    const int to = first_row * kSwizzledBytes +
                   (part ^ first_row % kSwizzleRows) * static_cast<int>(kVectorBytes);
    static_assert(kRowStep % kSwizzleRows == 0, "the place within a row is the same in each turn");
    std::int64_t fetched = 0;
    int awaited = 0;  // stage of the oldest piece of x that has not been awaited
    const auto hand_over = [&] {
      publish_shared();
      arrive_here(&filled[awaited]);
      awaited = awaited + 1 == kStages ? 0 : awaited + 1;
    };
    for (std::int64_t tile = first_tile; tile < tiles.count(); tile += tiles.clusters) {
      const Place place = place_of(tile);
      const X* from[kTurns];
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const std::int64_t row = row_of(place.set, place.first_listed + first_row + i * kRowStep);
        from[i] = row < 0 ? nullptr : static_cast<const X*>(args.x) + row * args.x_stride;
      }
      const CUtensorMap* const map = place.set == 0 ? &first_map : &second_map;
      const int weight_row =
          static_cast<int>(place.first_output) + static_cast<int>(block) * kBoxRows;
      for (int piece = 0; piece < pieces; ++piece) {
        await_phase(&emptied[ring.stage], ring.parity ^ 1);
        char* const at = stages + ring.stage * kStageBytes;
        if (thread == 0) {
          expect_bytes(&filled[ring.stage], kWeightBytes);
          load_tile_for((1 << kBlocks) - 1, at + kXBytes + static_cast<int>(block) * kBoxBytes, map,
                        &filled[ring.stage], piece * kPieceInputs, weight_row);
        }
        const std::int64_t input =
            static_cast<std::int64_t>(piece) * kPieceInputs + part * (kPieceInputs / kParts);
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
          const bool inside = from[i] != nullptr && input < args.inputs;
          fetch(reinterpret_cast<uint4*>(at + to + i * kRowStep * kSwizzledBytes),
                inside ? static_cast<const void*>(from[i] + input) : args.x, inside);
        }
        end_of_fetches();
        ring.next();
        if (++fetched > kUnderWay) {
          await_fetches<kUnderWay>();
          hand_over();
        }
      }
    }
    await_fetches<0>();
    for (int left = fetched < kUnderWay ? static_cast<int>(fetched) : kUnderWay; left > 0; --left)
      hand_over();
  } else {
    take_registers<224>();
    const auto release = [&](int of) {
      if (thread < kBlocks) arrive_at(&emptied[of], static_cast<unsigned>(thread));
    };
    const int warp = thread / kWarp, lane = thread % kWarp, four = lane / 4, pair = lane % 4;
    char* const results =
        stages + kStages * kStageBytes + (group * kWarpgroup / kWarp + warp) * kResultBytes;
    float sums[128];
    for (std::int64_t tile = first_tile; tile < tiles.count(); tile += tiles.clusters) {
      int before = 0;
      for (int piece = 0; piece < pieces; ++piece) {
        await_phase(&filled[ring.stage], ring.parity);
        const char* const at = stages + ring.stage * kStageBytes;
        const std::uint64_t a = tile_descriptor(at + group * kGroupRows * kSwizzledBytes);
        const std::uint64_t b = tile_descriptor(at + kXBytes);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) {  // 32 bytes each
          multiply_64x256<X>(sums, a + k * kDescriptorStep, b + k * kDescriptorStep,
                             piece > 0 || k > 0);
        }
        end_of_products();
        if (piece > 0) {
          await_products<1>();
          release(before);
        }
        before = ring.stage;
        ring.next();
      }
      await_products<0>();
      hold(sums);
      release(before);

      const Place place = place_of(tile);
      const RoutedLinearArgs::Set& set = args.sets[place.set];
      // The first 16 lanes know a row each.
      const std::int64_t own = row_of(
          place.set, place.first_listed + group * kGroupRows + warp * kWarpRows + lane % kWarpRows);
      const float own_scale = args.x_scales == nullptr || own < 0 ? 1.0f : args.x_scales[own];
      const float scales[] = {__shfl_sync(kAllLanes, own_scale, four),
                              __shfl_sync(kAllLanes, own_scale, four + 8)};
      const T* const bias = static_cast<const T*>(set.bias);
#pragma unroll
      for (int c = 0; c < kTileOutputs / kResultColumns; ++c) {
        const std::int64_t first_output = place.first_output + c * kResultColumns;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kResultColumns / 16; ++i) {
          float values[8];
#pragma unroll
          for (int j = 0; j < 8; ++j) {  // 8 columns, then the next 8; in each row q, then q + 8
            const std::int64_t output = first_output + i * 16 + j / 4 * 8 + 2 * pair + j % 2;
            float sum = sums[32 * c + 8 * i + j];
            const bool inside = output < args.outputs;
            if (set.scales != nullptr && inside) sum *= set.scales[output];
            if (args.x_scales != nullptr) sum *= scales[j / 2 % 2];
            if (bias != nullptr && inside) sum += widen(bias[output]);
            values[j] = sum;
          }
          const Vector<T, 8> rounded = round_all<T, 8>(values);
          const auto* words = reinterpret_cast<const unsigned*>(rounded.at);
          const char* at = results + lane % 16 * kResultPitch + (2 * i + lane / 16) * 16;
          asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                           shared_address(at)),
                       "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                       : "memory");
        }
        __syncwarp();
        // Eight lanes write a row's 128 bytes.
#pragma unroll
        for (int i = 0; i < kWarpRows / 4; ++i) {
          const int within = i * 4 + lane / 8, part = lane % 8;
          const std::int64_t row = __shfl_sync(kAllLanes, own, within);
          const std::int64_t output = first_output + part * 8;
          if (row < 0 || output >= args.outputs) continue;
          const uint4 words =
              *reinterpret_cast<const uint4*>(results + within * kResultPitch + part * 16);
          store_words(static_cast<T*>(args.y) + row * args.y_stride + output, words);
        }
      }
    }
  }
  // No block ends while another may still send to its shared memory.
  join_cluster();
#endif
}

std::int64_t clusters_at_once() {
  return device_attribute(cudaDevAttrMultiProcessorCount) / kBlocks;
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
  Tiles tiles{};
  tiles.of_first = parts_of(args.sets[0].rows.count, kBlocks * kTileRows);
  tiles.down = tiles.of_first + parts_of(args.sets[1].rows.count, kBlocks * kTileRows);
  tiles.across = parts_of(args.outputs, kTileOutputs);
  tiles.clusters = std::min(tiles.count(), clusters_at_once());
  const auto kernel = routed_linear_kernel<T, X>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  kernel<<<static_cast<unsigned>(tiles.clusters * kBlocks), kThreads, kSharedBytes, stream>>>(
      args, maps[0], maps[1], tiles);
  return launch_error();
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

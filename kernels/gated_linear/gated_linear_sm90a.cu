#include <algorithm>

#include "kernels/device_fetch.cuh"
#include "kernels/device_hopper.cuh"
#include "kernels/device_silu.cuh"
#include "kernels/gated_linear/gated_linear.h"
#include "kernels/host_hopper.h"

namespace diptych::kernels {
namespace {

constexpr int kBlocks = 2;                   // of a cluster, one below the other
constexpr int kTileRows = 128, kTile = 128;  // of y, of a block
constexpr int kPiece = 64;                   // inputs: a swizzled row of shared memory
constexpr int kStages = 4;
constexpr int kMultiplying = 2;  // warpgroups
constexpr int kGroupRows = kTileRows / kMultiplying;
constexpr int kThreads = (1 + kMultiplying) * kWarpgroup;
constexpr int kTileBytes = kTile * kSwizzledBytes;  // of x, of gate rows or of up rows
constexpr int kStageBytes = 3 * kTileBytes;
constexpr int kResultBytes = kGroupRows * kSwizzledBytes;  // 64 rows by 64 columns of y
constexpr int kResults = kTile * 2 / kSwizzledBytes;       // of a warpgroup, side by side
constexpr int kAlignment = kSwizzleRows * kSwizzledBytes;
constexpr int kSharedBytes =
    kStages * kStageBytes + kMultiplying * kResults * kResultBytes + kAlignment;

struct Place {
  int row, column;  // of a block's tile
};

struct Tiles {
  std::int64_t down, across, clusters;

  __host__ __device__ std::int64_t count() const { return down * across; }
};

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
    const auto* words = reinterpret_cast<const unsigned*>(y.at);
    const int part = 2 * i + lane / 16, parts = kSwizzledBytes / 16;
    const char* const at = results + part / parts * kResultBytes + row * kSwizzledBytes +
                           (part % parts ^ row % kSwizzleRows) * 16;
    __syncwarp();  // the activation branches by value
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(at)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

template <typename T>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(kThreads, 1)
    gated_linear_kernel(const __grid_constant__ CUtensorMap x_map,
                        const __grid_constant__ CUtensorMap weight_map,
                        const __grid_constant__ CUtensorMap y_map, const Tiles tiles,
                        const int pieces, const int inner) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  extern __shared__ char unaligned[];
  __shared__ std::uint64_t filled[kStages], emptied[kStages];
  char* const stages = reinterpret_cast<char*>(
      (reinterpret_cast<std::uintptr_t>(unaligned) + kAlignment - 1) / kAlignment * kAlignment);
  const unsigned block = block_in_cluster();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&filled[i], 1);
      init_barrier(&emptied[i], kBlocks * kMultiplying);
    }
    publish_barriers();
  }
  join_cluster();

  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const std::int64_t first_tile = blockIdx.x / kBlocks;
  const auto place_of = [&](std::int64_t tile) -> Place {
    const TilePlace place = tile_place(tile, tiles.down, tiles.across);
    return {static_cast<int>((place.down * kBlocks + block) * kTileRows),
            static_cast<int>(place.across * kTile)};
  };
  Ring<kStages> ring;
  if (group == kMultiplying) {
    leave_registers<40>();
    if (thread == 0) {
      for (std::int64_t tile = first_tile; tile < tiles.count(); tile += tiles.clusters) {
        const Place place = place_of(tile);
        const int weight_row = place.column + (block == 0 ? 0 : inner);
        for (int piece = 0; piece < pieces; ++piece) {
          await_phase(&emptied[ring.stage], ring.parity ^ 1);
          char* const at = stages + ring.stage * kStageBytes;
          expect_bytes(&filled[ring.stage], kStageBytes);
          load_tile(at, &x_map, &filled[ring.stage], piece * kPiece, place.row);
          load_tile_for((1 << kBlocks) - 1, at + (1 + static_cast<int>(block)) * kTileBytes,
                        &weight_map, &filled[ring.stage], piece * kPiece, weight_row);
          ring.next();
        }
      }
    }
  } else {
    take_registers<232>();
    const auto release = [&](int of) {
      if (thread < kBlocks) arrive_at(&emptied[of], static_cast<unsigned>(thread));
    };
    char* const results = stages + kStages * kStageBytes + group * kResults * kResultBytes;
    float sums[128];
    for (std::int64_t tile = first_tile; tile < tiles.count(); tile += tiles.clusters) {
      int before = 0;
      for (int piece = 0; piece < pieces; ++piece) {
        await_phase(&filled[ring.stage], ring.parity);
        const char* const at = stages + ring.stage * kStageBytes;
        const std::uint64_t a = tile_descriptor(at + group * kGroupRows * kSwizzledBytes);
        const std::uint64_t b = tile_descriptor(at + kTileBytes);
        begin_products();
#pragma unroll
        for (int k = 0; k < kPiece / 16; ++k) {
          multiply_64x256<T>(sums, a + k * kDescriptorStep, b + k * kDescriptorStep,
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

      const int barrier = 1 + group;  // 0 is that of all threads
      if (thread == 0) await_stores_read();
      join_warpgroup(barrier);
      put_results<T>(sums, results, thread / kWarp, thread % kWarp);
      publish_shared();
      join_warpgroup(barrier);
      if (thread == 0) {
        const Place place = place_of(tile);
        for (int i = 0; i < kResults; ++i) {
          store_tile(&y_map, results + i * kResultBytes, place.column + i * kPiece,
                     place.row + group * kGroupRows);
        }
        end_of_stores();
      }
    }
    if (thread == 0) await_stores();
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
  Tiles tiles{};
  tiles.down = parts_of(args.rows, kBlocks * kTileRows);
  tiles.across = parts_of(args.inner, kTile);
  tiles.clusters = std::min<std::int64_t>(
      tiles.count(), device_attribute(cudaDevAttrMultiProcessorCount) / kBlocks);
  const auto kernel = gated_linear_kernel<T>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  kernel<<<static_cast<unsigned>(tiles.clusters * kBlocks), kThreads, kSharedBytes, stream>>>(
      x, weight, y, tiles, static_cast<int>(parts_of(args.inputs, kPiece)),
      static_cast<int>(args.inner));
  return launch_error();
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

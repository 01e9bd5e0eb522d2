#include <algorithm>

#include "kernels/device_hopper.cuh"
#include "kernels/host_hopper.h"
#include "kernels/int8_linear/int8_linear.h"

namespace diptych::kernels {

// How a block computes kRows rows of 128 outputs.
template <int kRows>
struct Int8LinearShape {
  static constexpr int kOutputs = 128, kGroupOutputs = 64;
  static constexpr int kMultiplying = kOutputs / kGroupOutputs;  // warpgroups
  static constexpr int kThreads = (1 + kMultiplying) * kWarpgroup;
  static constexpr int kPiece = 64;  // inputs: a swizzled row of x in shared memory
  static constexpr int kXBytes = kRows * kSwizzledBytes, kWeightBytes = kOutputs * kPiece;
  static constexpr int kStageBytes = kXBytes + kWeightBytes;
  static constexpr int kResultBytes = kRows * kSwizzledBytes;  // of a group
  static constexpr int kAlignment = kSwizzleRows * kSwizzledBytes;
  static constexpr int kSharedBytes = 225 * 1024;  // of the 227 KiB that a block may have
  static constexpr int kStages =
      (kSharedBytes - kAlignment - kMultiplying * kResultBytes) / kStageBytes;
};

namespace {

constexpr int kBlocks = 2;  // of a cluster, with neighbouring outputs

struct Tiles {
  std::int64_t down, across, clusters;

  __host__ __device__ std::int64_t count() const { return down * across; }
};

struct Place {
  int row, output;  // of a block's tile
};

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
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     to + i * 16 * kSwizzledBytes),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

template <typename T, int kRows>
__global__ void __cluster_dims__(kBlocks) __launch_bounds__(Int8LinearShape<kRows>::kThreads, 1)
    int8_linear_kernel(const __grid_constant__ CUtensorMap x_map,
                       const __grid_constant__ CUtensorMap weight_map,
                       const __grid_constant__ CUtensorMap y_map, const float* scales,
                       const T* bias, const Tiles tiles, const int pieces, const int outputs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  using S = Int8LinearShape<kRows>;
  constexpr int kWarps = kWarpgroup / kWarp;
  constexpr int kSteps = S::kPiece / 16;  // of a product each
  extern __shared__ char unaligned[];
  __shared__ std::uint64_t filled[S::kStages], emptied[S::kStages];
  char* const stages =
      reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(unaligned) + S::kAlignment - 1) /
                              S::kAlignment * S::kAlignment);
  const unsigned block = block_in_cluster();
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      init_barrier(&filled[i], 1);
      init_barrier(&emptied[i], kBlocks * S::kMultiplying * kWarps);
    }
    publish_barriers();
  }
  join_cluster();

  const int group = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const std::int64_t first_tile = blockIdx.x / kBlocks;
  const auto place_of = [&](std::int64_t tile) -> Place {
    const TilePlace place = tile_place(tile, tiles.down, tiles.across);
    return {static_cast<int>(place.down * kRows),
            static_cast<int>((place.across * kBlocks + block) * S::kOutputs)};
  };
  Ring<S::kStages> ring;
  if (group == S::kMultiplying) {
    leave_registers<40>();
    if (thread == 0) {
      // Each block fetches these rows for both.
      constexpr int kOwnRows = kRows / kBlocks;
      const int own = static_cast<int>(block) * kOwnRows;
      for (std::int64_t tile = first_tile; tile < tiles.count(); tile += tiles.clusters) {
        const Place place = place_of(tile);
        for (int piece = 0; piece < pieces; ++piece) {
          await_phase(&emptied[ring.stage], ring.parity ^ 1);
          char* const at = stages + ring.stage * S::kStageBytes;
          expect_bytes(&filled[ring.stage], S::kStageBytes);
          load_tile_for((1 << kBlocks) - 1, at + own * kSwizzledBytes, &x_map, &filled[ring.stage],
                        piece * S::kPiece, place.row + own);
          load_tile(at + S::kXBytes, &weight_map, &filled[ring.stage], piece * S::kPiece,
                    place.output);
          ring.next();
        }
      }
    }
  } else {
    take_registers<232>();
    const int warp = thread / kWarp, lane = thread % kWarp, four = lane / 4, pair = lane % 4;
    // Every warp reads weights of its own, so every warp says when it has done so.
    const auto release = [&](int of) {
      if (lane < kBlocks) arrive_at(&emptied[of], static_cast<unsigned>(lane));
    };
    // Of this thread's first pair of a step's inputs, in a row of 64 bytes whose 16-byte parts are
    // swizzled by every second row; the row that is 8 further has the same order.
    const int own = (group * S::kGroupOutputs + warp * 16 + four) * S::kPiece + 2 * pair;
    const auto widen_step = [&](unsigned(&a)[4], unsigned weights, int step) {
      const unsigned at = weights + own + (step ^ four / 2) * 16;
      constexpr unsigned kBelow = 8 * S::kPiece, kBehind = 8;
      a[0] = widen_pair<T>(at);
      a[1] = widen_pair<T>(at + kBelow);
      a[2] = widen_pair<T>(at + kBehind);
      a[3] = widen_pair<T>(at + kBelow + kBehind);
    };
    char* const results = stages + S::kStages * S::kStageBytes + group * S::kResultBytes;
    float sums[kRows / 2];
    unsigned even[kSteps][4], odd[kSteps][4];  // of this piece and of that which is multiplied
    for (std::int64_t tile = first_tile; tile < tiles.count(); tile += tiles.clusters) {
      int before = 0;
      const auto multiply_piece = [&](unsigned(&a)[kSteps][4], bool first) {
        await_phase(&filled[ring.stage], ring.parity);
        const char* const at = stages + ring.stage * S::kStageBytes;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) widen_step(a[k], shared_address(at + S::kXBytes), k);
        const std::uint64_t x = tile_descriptor(at);
        begin_products();
#pragma unroll
        for (int k = 0; k < kSteps; ++k)
          multiply_registers<T>(sums, a[k], x + k * kDescriptorStep, !first || k > 0);
        end_of_products();
        if (!first) {
          await_products<1>();
          release(before);
        }
        before = ring.stage;
        ring.next();
      };
      for (int piece = 0; piece < pieces; piece += 2) {
        multiply_piece(even, piece == 0);
        if (piece + 1 < pieces) multiply_piece(odd, false);
      }
      await_products<0>();
      hold(sums);
      release(before);

      const Place place = place_of(tile);
      const int first_output = place.output + group * S::kGroupOutputs;
      const int barrier = 1 + group;  // 0 is that of all threads
      if (thread == 0) await_stores_read();
      join_warpgroup(barrier);
      put_results<T>(sums, scale_of(first_output + warp * 16 + four, scales, bias, outputs),
                     results, warp, lane);
      publish_shared();
      join_warpgroup(barrier);
      if (thread == 0) {
        store_tile(&y_map, results, first_output, place.row);
        end_of_stores();
      }
    }
    if (thread == 0) await_stores();
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
       {make_tile_map(&x, element, args.x, args.rows, args.inputs, args.x_stride, kRows / kBlocks),
        make_tile_map(&weight, TileElement::i8, args.weight, args.outputs, args.inputs, args.inputs,
                      S::kOutputs),
        make_tile_map(&y, element, args.y, args.rows, args.outputs, args.y_stride, kRows)}) {
    if (error != nullptr) return error;
  }
  Tiles tiles{};
  tiles.down = parts_of(args.rows, kRows);
  tiles.across = parts_of(args.outputs, kBlocks * S::kOutputs);
  tiles.clusters = std::min<std::int64_t>(
      tiles.count(), device_attribute(cudaDevAttrMultiProcessorCount) / kBlocks);
  const auto kernel = int8_linear_kernel<T, kRows>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  kernel<<<static_cast<unsigned>(tiles.clusters * kBlocks), S::kThreads, S::kSharedBytes, stream>>>(
      x, weight, y, args.scales, static_cast<const T*>(args.bias), tiles,
      static_cast<int>(parts_of(args.inputs, S::kPiece)), static_cast<int>(args.outputs));
  return launch_error();
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

// The main loop that the products for compute capability 9.0 share. A cluster of two blocks
// computes one tile of the result after another. In each block one warpgroup fills stages of shared
// memory with pieces of both factors, and two others multiply what was filled. Every kernel says
// for itself how a stage is filled, how it is multiplied and where the sums go.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device_hopper.cuh"

// Blocks of a cluster, on a kernel's declaration. Code for older architectures has no clusters
// (nvcc 13 refuses the attribute for 8.0) and no body (see has_hopper_code in host_hopper.h).
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define DIPTYCH_CLUSTER_OF(blocks) __cluster_dims__(blocks)
#else
#define DIPTYCH_CLUSTER_OF(blocks)
#endif

namespace diptych::kernels {

inline constexpr int kClusterBlocks = 2;
inline constexpr std::uint16_t kAllOfCluster = (1 << kClusterBlocks) - 1;
inline constexpr int kMultiplying = 2;  // warpgroups; the one behind them fills the stages
inline constexpr int kProductThreads = (1 + kMultiplying) * kWarpgroup;
inline constexpr int kTileAlignment = kSwizzleRows * kSwizzledBytes;

// The tiles of a product, and how many clusters take them in turn.
struct Tiles {
  std::int64_t down, across, clusters;

  __host__ __device__ std::int64_t count() const { return down * across; }
};

// Calls body(tile) for each tile of this cluster. Both sides of a pipeline take the same tiles in
// the same order.
template <typename Body>
__device__ __forceinline__ void for_tiles(const Tiles& tiles, const Body& body) {
  for (std::int64_t tile = blockIdx.x / kClusterBlocks; tile < tiles.count();
       tile += tiles.clusters) {
    body(tile);
  }
}

// The place of a thread in its cluster.
struct Worker {
  unsigned block;
  int group, thread;  // group: warpgroup of the block; thread: of the group

  __device__ __forceinline__ static Worker here() {
    // By a shuffle, so that the compiler knows that a warp has one group.
    const unsigned group = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0);
    return {block_in_cluster(), static_cast<int>(group),
            static_cast<int>(threadIdx.x % kWarpgroup)};
  }
  __device__ __forceinline__ bool fills() const { return group == kMultiplying; }
};

// The dynamic shared memory, from where a tile may begin; up to kTileAlignment bytes of it are
// lost.
__device__ __forceinline__ char* tiles_in_shared() {
  extern __shared__ char unaligned[];
  return reinterpret_cast<char*>(
      (reinterpret_cast<std::uintptr_t>(unaligned) + kTileAlignment - 1) / kTileAlignment *
      kTileAlignment);
}

// In shared memory: a stage holds a piece, or may be filled again.
template <int kStages>
struct StageBarriers {
  std::uint64_t filled[kStages], emptied[kStages];
};

// A thread's view of the stages. Each side goes through them in its own ring.
template <int kStages, int kStageBytes>
struct Pipeline {
  StageBarriers<kStages>& barriers;
  char* stages;  // kStages of kStageBytes each; what follows them belongs to the kernel
  Ring<kStages> ring;

  // Called by all threads of the cluster. fills: arrivals at `filled` of each stage, without bytes.
  // empties: arrivals at `emptied` from one warpgroup of one block.
  __device__ __forceinline__ static Pipeline begin(StageBarriers<kStages>& barriers, unsigned fills,
                                                   unsigned empties) {
    char* const stages = tiles_in_shared();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        init_barrier(&barriers.filled[i], fills);
        init_barrier(&barriers.emptied[i], kClusterBlocks * kMultiplying * empties);
      }
      publish_barriers();
    }
    join_cluster();
    return {barriers, stages, {}};
  }

  __device__ __forceinline__ char* behind_stages() const { return stages + kStages * kStageBytes; }

  // The filling side, of one tile: fill(piece, at, filled) starts the transfers of a piece to the
  // stage at `at`, which arrive at the barrier `filled`.
  template <typename Fill>
  __device__ __forceinline__ void fill_pieces(int pieces, const Fill& fill) {
    for (int piece = 0; piece < pieces; ++piece) {
      await_phase(&barriers.emptied[ring.stage], ring.parity ^ 1);
      fill(piece, stages + ring.stage * kStageBytes, &barriers.filled[ring.stage]);
      ring.next();
    }
  }

  // The multiplying side, of one tile. multiply(at, buffer, first) starts the products of the piece
  // in the stage at `at`. The products of one piece still run while the next one is prepared, so
  // what they read in registers has kBuffers places: `buffer` is an integral_constant that counts
  // through them. Afterwards the sums are complete. `releaser` says who tells the cluster that a
  // stage may be filled again: the threads that pass 0 and 1, each to one block.
  template <int kBuffers, int kCount, typename Multiply>
  __device__ __forceinline__ void multiply_pieces(float (&sums)[kCount], int pieces, int releaser,
                                                  const Multiply& multiply) {
    static_assert(kBuffers == 1 || kBuffers == 2);
    int before = 0;  // the stage whose products run
    const auto take = [&](auto buffer, bool first) {
      await_phase(&barriers.filled[ring.stage], ring.parity);
      multiply(stages + ring.stage * kStageBytes, buffer, first);
      end_of_products();
      if (!first) {
        await_products<1>();
        release(before, releaser);
      }
      before = ring.stage;
      ring.next();
    };
    for (int piece = 0; piece < pieces; piece += kBuffers) {
      take(std::integral_constant<int, 0>{}, piece == 0);
      if constexpr (kBuffers == 2) {
        if (piece + 1 < pieces) take(std::integral_constant<int, 1>{}, false);
      }
    }
    await_products<0>();
    hold(sums);
    release(before, releaser);
  }

  __device__ __forceinline__ void release(int stage, int releaser) const {
    if (releaser < kClusterBlocks)
      arrive_at(&barriers.emptied[stage], static_cast<unsigned>(releaser));
  }
};

// Starts sums [64, 256] = or += a * b^T of one stage: tiles of 128 bytes a row.
template <typename X>
__device__ __forceinline__ void multiply_stage(float (&sums)[128], const char* a_tile,
                                               const char* b_tile, bool first) {
  const std::uint64_t a = tile_descriptor(a_tile), b = tile_descriptor(b_tile);
  begin_products();
#pragma unroll
  for (int k = 0; k < kSwizzledBytes / 32; ++k)
    multiply_tile<X>(sums, a + k * kDescriptorStep, b + k * kDescriptorStep, !first || k > 0);
}

// A warpgroup's way from sums to memory through its part of shared memory, from which the
// accelerator writes: put() writes there in all threads, store() starts the transfers in one.
template <typename Put, typename Store>
__device__ __forceinline__ void store_results(const Worker& worker, const Put& put,
                                              const Store& store) {
  const int barrier = 1 + worker.group;  // 0 is that of all threads
  if (worker.thread == 0) await_stores_read();
  join_warpgroup(barrier);
  put();
  publish_shared();
  join_warpgroup(barrier);
  if (worker.thread == 0) {
    store();
    end_of_stores();
  }
}

// A warp writes 16 x 16 elements to shared memory from registers in the order that the sums of a
// product have. `to`: where the row of 8 elements goes that this lane is responsible for; with
// kTransposed a column.
template <bool kTransposed>
__device__ __forceinline__ void store_matrices(unsigned to, const unsigned* words) {
  if constexpr (kTransposed) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

}  // namespace diptych::kernels

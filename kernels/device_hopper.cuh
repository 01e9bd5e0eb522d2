// What compute capability 9.0 has and no other (sm_90a): tiles that the tensor memory accelerator
// moves, barriers that count their bytes, and products of a warpgroup. PTX ISA, "Asynchronous
// warpgroup level matrix instructions" and "Data movement: tensor"; the shape of a kernel made of
// these follows pranjalssh/fast.cu (38eb642, examples/matmul/matmul_12.cuh).
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda.h>

#include "kernels/device_vector.cuh"

namespace diptych::kernels {

inline constexpr int kWarpgroup = 128;
// Tiles that are multiplied from shared memory are of rows of 128 bytes, whose 16-byte parts lie
// swizzled by the row modulo 8.
inline constexpr int kSwizzledBytes = 128;
inline constexpr int kSwizzleRows = 8;

__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// --- barriers in shared memory ---------------------------------------------------------------

__device__ __forceinline__ void init_barrier(std::uint64_t* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
// Makes initialised barriers known to the accelerator and to the cluster.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, with so many bytes still to come.
__device__ __forceinline__ void expect_bytes(std::uint64_t* barrier, unsigned bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Arrives at the barrier of this place in a block of the cluster. Here and in await_phase the scope
// is the block: the tiles that these barriers guard are read and written by the tensor cores, the
// accelerator and threads of the same block, which fence what they write, and a scope of the
// cluster would cost a fence of all memory each time.
__device__ __forceinline__ void arrive_at(unsigned barrier, unsigned block) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(block)
      : "memory");
}
__device__ __forceinline__ void arrive_at(std::uint64_t* barrier, unsigned block) {
  arrive_at(shared_address(barrier), block);
}
// Arrives at a barrier of this block.
__device__ __forceinline__ void arrive_here(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_here(std::uint64_t* barrier) {
  arrive_here(shared_address(barrier));
}
__device__ __forceinline__ void await_phase(unsigned barrier, unsigned parity) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}
__device__ __forceinline__ void await_phase(std::uint64_t* barrier, unsigned parity) {
  await_phase(shared_address(barrier), parity);
}

__device__ __forceinline__ unsigned block_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void join_cluster() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}
// The threads of one warpgroup, by a barrier of their own.
__device__ __forceinline__ void join_warpgroup(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kWarpgroup) : "memory");
}

template <unsigned kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <unsigned kCount>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// In order among themselves alone: for memory that nothing else reads or writes.
__device__ __forceinline__ float4 load_shared(unsigned address) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(address));
  return four;
}
__device__ __forceinline__ void store_shared(unsigned address, const float4& four) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(four.x), "f"(four.y),
               "f"(four.z), "f"(four.w));
}

// --- tiles -----------------------------------------------------------------------------------

__device__ __forceinline__ void load_tile(void* shared, const CUtensorMap* map,
                                          std::uint64_t* barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row)
      : "memory");
}
// To the same place in all blocks of the cluster that the mask names, and to their barriers.
__device__ __forceinline__ void load_tile_for(std::uint16_t blocks, void* shared,
                                              const CUtensorMap* map, std::uint64_t* barrier,
                                              int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}
// The same of arrays of three and of four dimensions; places count from the innermost one.
__device__ __forceinline__ void load_box(void* shared, const CUtensorMap* map,
                                         std::uint64_t* barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void load_box(void* shared, const CUtensorMap* map,
                                         std::uint64_t* barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
__device__ __forceinline__ void load_box_for(std::uint16_t blocks, void* shared,
                                             const CUtensorMap* map, std::uint64_t* barrier, int x,
                                             int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
      : "memory");
}
// Pixels of clips in channels_last, as many as the map says (PixelColumns in host_hopper.h): from a
// place on, row by row, each moved by a tap's offset. What lies outside a clip is 0.
struct ClipPlace {
  int channel, column, row, frame, clip;
};
struct TapOffset {
  int columns, rows, frames;
};
__device__ __forceinline__ void load_pixels(void* shared, const CUtensorMap* map,
                                            std::uint64_t* barrier, const ClipPlace& at,
                                            const TapOffset& tap) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(at.channel), "r"(at.column), "r"(at.row),
      "r"(at.frame), "r"(at.clip), "h"(static_cast<std::uint16_t>(tap.columns)),
      "h"(static_cast<std::uint16_t>(tap.rows)), "h"(static_cast<std::uint16_t>(tap.frames))
      : "memory");
}
// Bytes as they lie, a multiple of 16, to all blocks of the cluster that the mask names.
__device__ __forceinline__ void load_bytes_for(std::uint16_t blocks, void* shared, const void* from,
                                               unsigned bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void store_tile(const CUtensorMap* map, const void* shared, int column,
                                           int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(shared_address(shared)), "r"(column), "r"(row)
      : "memory");
}
__device__ __forceinline__ void end_of_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until this thread's stores have read shared memory.
__device__ __forceinline__ void await_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
// What this thread wrote to shared memory, or fetched and awaited, is seen by the accelerator and
// the tensor cores.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Stages in shared memory that are filled and emptied in turn; the parity is that of the phase in
// which their barriers are awaited.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    parity ^= stage == 0 ? 1 : 0;
  }
};

struct TilePlace {
  std::int64_t down, across;
};
// Of the tiles of a product, so many lie below each other before the next ones across are taken:
// what runs at a time then shares rows of both factors in L2.
inline constexpr std::int64_t kTileBand = 8;
__device__ __forceinline__ TilePlace tile_place(std::int64_t tile, std::int64_t down,
                                                std::int64_t across) {
  const std::int64_t of_band = kTileBand * across, first = tile / of_band * kTileBand;
  const std::int64_t rest = down - first, high = rest < kTileBand ? rest : kTileBand;
  const std::int64_t within = tile % of_band;
  return {first + within % high, within / high};
}

// --- products of a warpgroup -----------------------------------------------------------------

// Of a swizzled tile. Either its rows are the rows (or columns) of a matrix and its 128 bytes are
// summed over; the next 32 of those are kDescriptorStep further. Or its rows are summed over, and
// panels of 64 columns lie `panel_bytes` apart. Groups of 8 rows follow each other.
__device__ __forceinline__ std::uint64_t tile_descriptor(const void* shared,
                                                         std::uint64_t panel_bytes = 16) {
  constexpr std::uint64_t kGroupBytes = kSwizzleRows * kSwizzledBytes, kSwizzle128 = 1;
  return (static_cast<std::uint64_t>(shared_address(shared)) & 0x3ffff) >> 4 |
         panel_bytes >> 4 << 16 | kGroupBytes >> 4 << 32 | kSwizzle128 << 62;
}
inline constexpr std::uint64_t kDescriptorStep = 32 >> 4;
// Of a tile whose rows are of 32 bytes, which are summed over. Their 16-byte parts lie swizzled by
// row / 4 modulo 2.
__device__ __forceinline__ std::uint64_t half_tile_descriptor(const void* shared) {
  constexpr std::uint64_t kGroupBytes = kSwizzleRows * 32, kSwizzle32 = 3;
  return (static_cast<std::uint64_t>(shared_address(shared)) & 0x3ffff) >> 4 | 1 << 16 |
         kGroupBytes >> 4 << 32 | kSwizzle32 << 62;
}

__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_of_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kLeft>
__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// Keeps a value in a register; the compiler would compute it anew at each use.
template <typename V>
__device__ __forceinline__ V computed_once(V value) {
  static_assert(sizeof(V) == 4);
  asm volatile("" : "+r"(value));
  return value;
}

// Keeps the compiler from reading sums before they have been awaited: nothing else ties them.
template <int kCount>
__device__ __forceinline__ void hold(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The places of sums in an instruction's text, and the sums.
#define DIPTYCH_PLACES_32                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DIPTYCH_PLACES_48 \
  DIPTYCH_PLACES_32       \
  ", "                    \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DIPTYCH_PLACES_64 \
  DIPTYCH_PLACES_48       \
  ", "                    \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DIPTYCH_PLACES_96                                                            \
  DIPTYCH_PLACES_64                                                                  \
  ", "                                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DIPTYCH_PLACES_128                                                                     \
  DIPTYCH_PLACES_96                                                                            \
  ", "                                                                                         \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
  "%111, "                                                                                     \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define DIPTYCH_SUMS_8(i)                                                       \
  "+f"(sums[i]), "+f"(sums[(i) + 1]), "+f"(sums[(i) + 2]), "+f"(sums[(i) + 3]), \
      "+f"(sums[(i) + 4]), "+f"(sums[(i) + 5]), "+f"(sums[(i) + 6]), "+f"(sums[(i) + 7])
#define DIPTYCH_SUMS_32(i) \
  DIPTYCH_SUMS_8(i), DIPTYCH_SUMS_8((i) + 8), DIPTYCH_SUMS_8((i) + 16), DIPTYCH_SUMS_8((i) + 24)
#define DIPTYCH_SUMS_48(i) DIPTYCH_SUMS_32(i), DIPTYCH_SUMS_8((i) + 32), DIPTYCH_SUMS_8((i) + 40)
#define DIPTYCH_SUMS_64(i) DIPTYCH_SUMS_32(i), DIPTYCH_SUMS_32((i) + 32)
#define DIPTYCH_SUMS_96(i) DIPTYCH_SUMS_64(i), DIPTYCH_SUMS_32((i) + 64)
#define DIPTYCH_SUMS_128(i) DIPTYCH_SUMS_64(i), DIPTYCH_SUMS_64((i) + 64)
// shape: columns "n..." and depth "k..."; orders: of each factor in shared memory ", 0" where its
// rows are rows (or columns) of the matrix, ", 1" where they are summed over. The last arguments
// are the operands of a.
#define DIPTYCH_WGMMA(shape, type, orders, count, a_places, b_place, adds_place, ...)            \
  asm volatile(                                                                                  \
      "{\n"                                                                                      \
      ".reg .pred adds;\n"                                                                       \
      "setp.ne.b32 adds, " adds_place                                                            \
      ", 0;\n"                                                                                   \
      "wgmma.mma_async.sync.aligned.m64" shape ".f32." type "." type " {" DIPTYCH_PLACES_##count \
      "}, " a_places ", " b_place ", adds, 1, 1" orders                                          \
      ";\n"                                                                                      \
      "}"                                                                                        \
      : DIPTYCH_SUMS_##count(0)                                                                  \
      : __VA_ARGS__, "l"(b), "r"(static_cast<int>(adds)))
// The same of 16-bit elements X.
#define DIPTYCH_WGMMA_16(columns, ...)                 \
  if constexpr (std::is_same_v<X, __half>) {           \
    DIPTYCH_WGMMA(columns "k16", "f16", __VA_ARGS__);  \
  } else {                                             \
    static_assert(std::is_same_v<X, __nv_bfloat16>);   \
    DIPTYCH_WGMMA(columns "k16", "bf16", __VA_ARGS__); \
  }
#define DIPTYCH_REGISTERS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// sums = or += a [64, k] * b [2 * kCount, k]^T, asynchronously, of the k elements that 32 bytes
// hold. Of 8 columns each thread holds, at 4 * (column / 8), those 2p and 2p + 1 of the row
// 16w + q, then of the row 16w + q + 8, where w is its warp, q its lane / 4 and p its lane % 4.
template <typename X, int kCount>
__device__ __forceinline__ void multiply_tile(float (&sums)[kCount], std::uint64_t a,
                                              std::uint64_t b, bool adds) {
  if constexpr (std::is_same_v<X, __nv_fp8_e4m3> && kCount == 128) {
    DIPTYCH_WGMMA("n256k32", "e4m3", "", 128, "%128", "%129", "%130", "l"(a));
  } else if constexpr (std::is_same_v<X, __nv_fp8_e4m3>) {
    static_assert(kCount == 48);
    DIPTYCH_WGMMA("n96k32", "e4m3", "", 48, "%48", "%49", "%50", "l"(a));
  } else if constexpr (kCount == 128) {
    DIPTYCH_WGMMA_16("n256", ", 0, 0", 128, "%128", "%129", "%130", "l"(a))
  } else if constexpr (kCount == 96) {
    DIPTYCH_WGMMA_16("n192", ", 0, 0", 96, "%96", "%97", "%98", "l"(a))
  } else if constexpr (kCount == 64) {
    DIPTYCH_WGMMA_16("n128", ", 0, 0", 64, "%64", "%65", "%66", "l"(a))
  } else {
    static_assert(kCount == 48);
    DIPTYCH_WGMMA_16("n96", ", 0, 0", 48, "%48", "%49", "%50", "l"(a))
  }
}

// sums = or += a [64, k] * b [columns, k]^T, asynchronously, with a of this thread's registers. Of
// 16-bit elements each holds two, where sums has those of a column: of the rows 16w + q and
// 16w + q + 8 the elements 2p and 2p + 1, then of both the elements 2p + 8 and 2p + 9. Of e4m3 it
// holds four: of those rows the elements from 4p on, then from 4p + 16 on. kRowsSummed: b is stored
// as [k, columns].
template <typename X, bool kRowsSummed = false, int kCount>
__device__ __forceinline__ void multiply_registers(float (&sums)[kCount], const unsigned (&a)[4],
                                                   std::uint64_t b, bool adds) {
  static_assert(kCount == 64 || (!kRowsSummed && (kCount == 32 || kCount == 128)));
  if constexpr (std::is_same_v<X, __nv_fp8_e4m3>) {
    static_assert(kCount == 64 && !kRowsSummed);
    DIPTYCH_WGMMA("n128k32", "e4m3", "", 64, "{%64, %65, %66, %67}", "%68", "%69",
                  DIPTYCH_REGISTERS);
  } else if constexpr (kCount == 32) {
    DIPTYCH_WGMMA_16("n64", ", 0", 32, "{%32, %33, %34, %35}", "%36", "%37", DIPTYCH_REGISTERS)
  } else if constexpr (kCount == 128) {
    DIPTYCH_WGMMA_16("n256", ", 0", 128, "{%128, %129, %130, %131}", "%132", "%133",
                     DIPTYCH_REGISTERS)
  } else if constexpr (kRowsSummed) {
    DIPTYCH_WGMMA_16("n128", ", 1", 64, "{%64, %65, %66, %67}", "%68", "%69", DIPTYCH_REGISTERS)
  } else {
    DIPTYCH_WGMMA_16("n128", ", 0", 64, "{%64, %65, %66, %67}", "%68", "%69", DIPTYCH_REGISTERS)
  }
}
#undef DIPTYCH_REGISTERS
#undef DIPTYCH_WGMMA_16
#undef DIPTYCH_WGMMA
#undef DIPTYCH_SUMS_128
#undef DIPTYCH_SUMS_96
#undef DIPTYCH_SUMS_64
#undef DIPTYCH_SUMS_48
#undef DIPTYCH_SUMS_32
#undef DIPTYCH_SUMS_8
#undef DIPTYCH_PLACES_128
#undef DIPTYCH_PLACES_96
#undef DIPTYCH_PLACES_64
#undef DIPTYCH_PLACES_48
#undef DIPTYCH_PLACES_32

}  // namespace diptych::kernels

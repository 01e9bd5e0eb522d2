#include "kernels/device_chain.cuh"
#include "kernels/device_norm_rope.cuh"
#include "kernels/qk_norm_rope/qk_norm_rope.h"
#include "kernels/row_sets.h"

namespace diptych::kernels {
namespace {

constexpr std::int64_t kMaxHeads = 65536;

// Where a k or v head of this row belongs in the cache.
template <typename T>
__device__ __forceinline__ T* cache_place(const QkNormRopeArgs& args, void* cache,
                                          std::int64_t sample_stride, std::int64_t row,
                                          std::int64_t head) {
  const std::int64_t slot = args.slots[row];
  if (slot < 0 || slot >= args.samples * args.capacity) __trap();
  const std::int64_t sample = slot / args.capacity, position = slot % args.capacity;
  return static_cast<T*>(cache) + sample * sample_stride +
         (position * args.kv_heads + head) * args.head_dim;
}

// Where a head of this row goes: to q, or to a place in the cache. A row's heads are those of q,
// then of k, then of v.
template <typename T>
__device__ __forceinline__ T* place_of_head(const QkNormRopeArgs& args, std::int64_t row,
                                            int head) {
  const int heads = static_cast<int>(args.heads), kv_heads = static_cast<int>(args.kv_heads);
  if (head < heads) return static_cast<T*>(args.q) + (row * heads + head) * args.head_dim;
  if (head < heads + kv_heads)
    return cache_place<T>(args, args.keys, args.key_stride, row, head - heads);
  return cache_place<T>(args, args.values, args.value_stride, row, head - heads - kv_heads);
}

// One row per block; `lanes` neighbouring lanes (a power of two up to 32) share a head.
template <typename T, int kCount, bool kEveryStep>
__global__ void __launch_bounds__(kMaxRowThreads)
    qk_norm_rope_kernel(const QkNormRopeArgs args, int lanes) {
  let_next_start();
  await_predecessors();
  const RoutedRow place = routed_row(args.sets[0].rows, args.sets[1].rows, blockIdx.x, args.rows);
  const std::int64_t row = place.row;
  const T* q_weight =
      static_cast<const T*>(place.in_first ? args.sets[0].q_weight : args.sets[1].q_weight);
  const T* k_weight =
      static_cast<const T*>(place.in_first ? args.sets[0].k_weight : args.sets[1].k_weight);
  const int heads = static_cast<int>(args.heads), kv_heads = static_cast<int>(args.kv_heads);
  const int all_heads = heads + 2 * kv_heads;
  const int thread = static_cast<int>(threadIdx.x);
  const int heads_at_once = static_cast<int>(blockDim.x) / lanes;
  const Geometry g{thread % lanes, lanes, static_cast<int>(args.head_dim / 2)};
  const T* qkv = static_cast<const T*>(args.qkv) + row * args.qkv_stride;
  const float* cos = args.cos + row * args.cos_stride;
  const float* sin = args.sin + row * args.sin_stride;

  for (int base = 0; base < all_heads; base += heads_at_once) {  // the same count for all threads
    const int head = base + thread / lanes;
    const bool mine = head < all_heads;
    const bool turns = head < heads + kv_heads;
    Halves<T, kCount> x;
    Factors<T, kCount> factors;
    T* to = nullptr;
    float squares = 0;
    if (mine) {
      // All that the head needs is on its way at once.
      const T* from = qkv + head * args.head_dim;
      for_items<T, kCount>(g, [&](int i, int at) {
        x.low[i] = load<T, kCount>(from + at);
        x.high[i] = load<T, kCount>(from + g.half + at);
      });
      const T* weight = head < heads ? q_weight : k_weight;
      for_items<T, kCount>(g, [&](int i, int at) {
        if (!turns) return;
        factors.low[i] = load<T, kCount>(weight + at);
        factors.high[i] = load<T, kCount>(weight + g.half + at);
        factors.cos[i] = load<float, kCount>(cos + at);
        factors.sin[i] = load<float, kCount>(sin + at);
      });
      to = place_of_head<T>(args, row, head);
      squares = sum_squares<T, kCount>(x, g);
    }
    squares = sum_lanes(squares, lanes);
    if (!mine) continue;
    const float scale = rsqrtf(squares / static_cast<float>(args.head_dim) + args.eps);
    if (turns) norm_and_rotate<T, kCount, kEveryStep>(x, g, factors, scale);
    for_items<T, kCount>(g, [&](int i, int at) {
      store<T, kCount>(to + at, x.low[i]);
      store<T, kCount>(to + g.half + at, x.high[i]);
    });
  }
}

std::int64_t routed_rows(const QkNormRopeArgs& args) {
  return args.sets[0].rows.count + args.sets[1].rows.count;
}

template <typename T, int kCount>
void launch(const QkNormRopeArgs& args, CUstream_st* stream) {
  const std::int64_t vectors = (args.head_dim / 2 + kCount - 1) / kCount;
  int lanes = 1;
  while (lanes < vectors && lanes < kWarp) lanes *= 2;
  // As many passes as 1024 threads need, with the heads spread evenly over them.
  const std::int64_t all_heads = args.heads + 2 * args.kv_heads;
  const std::int64_t passes = (all_heads * lanes + kMaxRowThreads - 1) / kMaxRowThreads;
  const std::int64_t heads_at_once = (all_heads + passes - 1) / passes;
  const auto threads = static_cast<unsigned>((heads_at_once * lanes + kWarp - 1) / kWarp * kWarp);
  const auto rows = static_cast<unsigned>(routed_rows(args));
  const auto kernel = args.round_every_step ? qk_norm_rope_kernel<T, kCount, true>
                                            : qk_norm_rope_kernel<T, kCount, false>;
  launch_chained({rows <= kChainedRows}, kernel, rows, threads, 0, stream, args, lanes);
}

bool vectorised(const QkNormRopeArgs& args) {
  for (const void* pointer :
       {args.qkv, args.sets[0].q_weight, args.sets[0].k_weight, args.sets[1].q_weight,
        args.sets[1].k_weight, static_cast<const void*>(args.cos),
        static_cast<const void*>(args.sin), static_cast<const void*>(args.q),
        static_cast<const void*>(args.keys), static_cast<const void*>(args.values)}) {
    if (!aligned(pointer)) return false;
  }
  return vectors_fit(args.dtype, args.head_dim / 2) && vectors_fit(args.dtype, args.qkv_stride) &&
         vectors_fit(args.dtype, args.key_stride) && vectors_fit(args.dtype, args.value_stride) &&
         vectors_fit(DType::f32, args.cos_stride) && vectors_fit(DType::f32, args.sin_stride);
}

}  // namespace

const char* qk_norm_rope_unsupported(const QkNormRopeArgs& args) {
  if (args.head_dim < 2 || args.head_dim > kMaxHeadDim || args.head_dim % 2 != 0) {
    return "head_dim is not an even number from 2 to 256";
  }
  if (args.heads < 1 || args.kv_heads < 1) return "heads or kv_heads is below 1";
  if (args.heads > kMaxHeads || args.kv_heads > kMaxHeads) return "more than 65536 heads";
  if (args.samples < 1 || args.capacity < 1) return "the cache is empty";
  if (args.rows > kMaxBlocks) return "more than 2^31 - 1 rows";
  return row_sets_unsupported(args.sets[0].rows, args.sets[1].rows, args.rows);
}

const char* qk_norm_rope(const QkNormRopeArgs& args, CUstream_st* stream) {
  if (const char* reason = qk_norm_rope_unsupported(args)) return reason;
  if (routed_rows(args) == 0) return nullptr;
  return launch_typed(args.dtype, vectorised(args),
                      [&]<typename T, int kCount>() { launch<T, kCount>(args, stream); });
}

}  // namespace diptych::kernels

#include "kernels/device_chain.cuh"
#include "kernels/device_matrices.cuh"
#include "kernels/device_norm_rope.cuh"
#include "kernels/host_hopper.h"
#include "kernels/rope_attention/rope_attention.h"

namespace diptych::kernels {
namespace {

constexpr int kDim = kRopeAttentionHeadDim;
constexpr int kThreads = 256;
constexpr int kBlocks = 16;  // of a cluster
constexpr int kKeys = 64;    // of a stage
constexpr int kStages = 2;
constexpr int kColumns = kRopeAttentionQueries;  // queries: columns of the products
constexpr int kVector = 8;                       // elements of 16 bytes
// Elements from row to row in shared memory, so that rows that are read at once meet other banks.
constexpr int kPitch = kDim + kVector, kLogitPitch = kKeys + 4, kWeightPitch = kKeys + kVector;
constexpr int kPart = kDim + 4;  // floats of a part: sums, largest logit, sum of weights

template <typename T>
struct Shared {
  alignas(16) T keys[kStages][kKeys][kPitch];
  alignas(16) T values[kStages][kKeys][kPitch];
  alignas(16) T queries[kColumns][kPitch];
  alignas(16) T weights[kColumns][kWeightPitch];
  float logits[kColumns][kLogitPitch];
  // Of the column that has this block's number: what each block has summed.
  alignas(8) float parts[kBlocks][kPart];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // only sm_90a compiles these bodies
constexpr int kWarps = kThreads / kWarp;
constexpr int kNeighbours = 4;  // neighbouring keys that a block takes at once
constexpr int kRound = kBlocks * kNeighbours;
constexpr int kTile = 16, kEight = 8;           // of an instruction: keys, and columns or elements
constexpr int kHeadLanes = kDim / 2 / kVector;  // that share a head while it is normed and rotated
enum class Part { query, key, value };
constexpr float kNone = -1e30f;  // below every logit; finite, so that differences stay numbers

// Which keys and queries a block has. Its own keys are counted through: 4 of every round.
struct Place {
  int block, kv_head, group, rows, columns;
  int count = 0;  // keys of the text
  int owned = 0;  // keys of this block, rounded up to 4: the last may lie behind the text

  __device__ __forceinline__ static Place of(const RopeAttentionArgs& args) {
    Place p;
    p.block = static_cast<int>(blockIdx.x) % kBlocks;
    p.kv_head = static_cast<int>(blockIdx.x) / kBlocks;
    p.group = static_cast<int>(args.rope.heads) / static_cast<int>(args.rope.kv_heads);
    p.rows = static_cast<int>(args.rope.rows);
    p.columns = p.rows * p.group;
    return p;
  }
  __device__ __forceinline__ void set_count(int keys) {
    count = keys;
    const int last = count - 1, rounds = last / kRound + 1;
    owned = (block <= last % kRound / kNeighbours ? rounds : rounds - 1) * kNeighbours;
  }
  __device__ __forceinline__ int stages() const { return (owned + kKeys - 1) / kKeys; }
  // Sixteens of keys that are there in a stage.
  __device__ __forceinline__ int tiles(int stage) const {
    return (min(owned - stage * kKeys, kKeys) + kTile - 1) / kTile;
  }
  __device__ __forceinline__ int key(int own) const {
    return own / kNeighbours * kRound + block * kNeighbours + own % kNeighbours;
  }
  __device__ __forceinline__ bool owns(int key) const {
    return key % kRound / kNeighbours == block;
  }
  static __device__ __forceinline__ int own(int key) {
    return key / kRound * kNeighbours + key % kNeighbours;
  }
  __device__ __forceinline__ int row(int column) const { return column / group; }
  __device__ __forceinline__ int head(int column) const { return kv_head * group + column % group; }
  // The position of a new row.
  __device__ __forceinline__ int position(int row) const { return count - rows + row; }
};

// --- matrices and the cluster ------------------------------------------------------------------

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void prefetch(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(line)));
}
__device__ __forceinline__ void arrive_in_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void await_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// To the same place in another block of the cluster.
__device__ __forceinline__ void store_there(const float* place, int block, float first,
                                            float second) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.v2.f32 [there], {%2, %3};\n"
      "}" ::"r"(shared_address(place)),
      "r"(block), "f"(first), "f"(second)
      : "memory");
}

// --- the steps of a block ----------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ T* cached(const RopeAttentionArgs& args, void* cache, const Place& p,
                                     int key) {
  return static_cast<T*>(cache) + (key * static_cast<int>(args.rope.kv_heads) + p.kv_head) * kDim;
}

// Starts to copy a stage's keys and values, except those of the new rows. Fills with zeros what
// lies behind the text and is multiplied.
template <typename T>
__device__ __forceinline__ void fetch_stage(const RopeAttentionArgs& args, const Place& p,
                                            Shared<T>& shared, int stage, int thread) {
  if (stage < p.stages()) {
    constexpr int kVectors = kDim / kVector, kAtOnce = kThreads / kVectors;
    const int slot = stage % kStages, there = p.tiles(stage) * kTile;
    const int at = thread % kVectors * kVector;
#pragma unroll
    for (int i = 0; i < kKeys / kAtOnce; ++i) {
      const int own = i * kAtOnce + thread / kVectors;
      const int key = p.key(stage * kKeys + own);
      if (own >= there || (key >= p.position(0) && key < p.count)) continue;
      const bool inside = key < p.count;
      const int safe = inside ? key : 0;
      fetch(reinterpret_cast<uint4*>(&shared.keys[slot][own][at]),
            cached<T>(args, args.rope.keys, p, safe) + at, inside);
      fetch(reinterpret_cast<uint4*>(&shared.values[slot][own][at]),
            cached<T>(args, args.rope.values, p, safe) + at, inside);
    }
  }
  end_of_fetches();
}

// Prefetches to the level 2 cache what earlier kernels do not write: the norms' weights, and the
// keys and values of the first stages. The number of keys may still be that of an earlier step;
// only prefetches depend on it here.
template <typename T>
__device__ __forceinline__ void fetch_ahead(const RopeAttentionArgs& args, Place p, int thread) {
  constexpr int kLine = 128, kLines = kDim * static_cast<int>(sizeof(T)) / kLine;
  if (thread < 2 * kLines) {
    const void* weight = thread < kLines ? args.rope.sets[0].q_weight : args.rope.sets[0].k_weight;
    prefetch(static_cast<const char*>(weight) + thread % kLines * kLine);
  }
  const int count = __ldcg(args.key_count);
  if (count < 1 || count > args.rope.capacity) return;
  p.set_count(count);
  const int lines = min(p.owned, kStages * kKeys) * 2 * kLines;
  for (int i = thread; i < lines; i += kThreads) {
    const int key = p.key(i / (2 * kLines)), part = i % (2 * kLines);
    if (key >= count) continue;
    void* cache = part < kLines ? args.rope.keys : args.rope.values;
    prefetch(reinterpret_cast<const char*>(cached<T>(args, cache, p, key)) + part % kLines * kLine);
  }
}

// Head `head` of the query, key or value heads of a row, normed and rotated (a value as it is), by
// the first set's weights. Not `mine`: nothing is read. All lanes of the warp call it.
template <typename T, bool kEveryStep>
__device__ __forceinline__ Halves<T, kVector> normed_head(const QkNormRopeArgs& args,
                                                          const Geometry& g, int row, Part kind,
                                                          int head, bool mine) {
  const int heads = static_cast<int>(args.heads), kv_heads = static_cast<int>(args.kv_heads);
  Halves<T, kVector> x;
  Factors<T, kVector> factors;
  float squares = 0;
  if (mine) {
    const int place = kind == Part::query ? head
                      : kind == Part::key ? heads + head
                                          : heads + kv_heads + head;
    const T* from = static_cast<const T*>(args.qkv) + row * args.qkv_stride + place * kDim;
    const auto* weight =
        static_cast<const T*>(kind == Part::query ? args.sets[0].q_weight : args.sets[0].k_weight);
    for_items<T, kVector>(g, [&](int i, int at) {
      x.low[i] = load<T, kVector>(from + at);
      x.high[i] = load<T, kVector>(from + g.half + at);
      if (kind == Part::value) return;
      factors.low[i] = load<T, kVector>(weight + at);
      factors.high[i] = load<T, kVector>(weight + g.half + at);
      factors.cos[i] = load<float, kVector>(args.cos + row * args.cos_stride + at);
      factors.sin[i] = load<float, kVector>(args.sin + row * args.sin_stride + at);
    });
    squares = sum_squares<T, kVector>(x, g);
  }
  squares = sum_lanes(squares, kHeadLanes);
  if (mine && kind != Part::value) {
    const float scale = rsqrtf(squares / static_cast<float>(kDim) + args.eps);
    norm_and_rotate<T, kVector, kEveryStep>(x, g, factors, scale);
  }
  return x;
}

template <typename T>
__device__ __forceinline__ void stage_head(const Halves<T, kVector>& x, const Geometry& g, T* to) {
  for_items<T, kVector>(g, [&](int i, int at) {
    *reinterpret_cast<Vector<T, kVector>*>(to + at) = x.low[i];
    *reinterpret_cast<Vector<T, kVector>*>(to + g.half + at) = x.high[i];
  });
}

// Norms and rotates the queries and what is this block's of the new rows' keys; those and their
// values go to the cache and to the stages that are being filled.
template <typename T, bool kEveryStep>
__device__ __forceinline__ void norm_and_place_rows(const RopeAttentionArgs& args, const Place& p,
                                                    Shared<T>& shared, int thread) {
  constexpr int kTeams = kThreads / kHeadLanes;
  const Geometry g{thread % kHeadLanes, kHeadLanes, kDim / 2};
  const int works = p.columns + 2 * p.rows;
  for (int base = 0; base < works; base += kTeams) {  // the same count for all threads
    const int work = base + thread / kHeadLanes;
    const Part kind = work < p.columns            ? Part::query
                      : work < p.columns + p.rows ? Part::key
                                                  : Part::value;
    const int row = kind == Part::query ? p.row(work) : (work - p.columns) % p.rows;
    const int position = p.position(row), own = Place::own(position);
    const bool mine = work < works && (kind == Part::query || p.owns(position));
    const int head = kind == Part::query ? p.head(work) : p.kv_head;
    const auto x = normed_head<T, kEveryStep>(args.rope, g, row, kind, head, mine);
    if (!mine) continue;
    if (kind == Part::query) {
      stage_head(x, g, shared.queries[work]);
      continue;
    }
    if (args.rope.slots[row] != position) __trap();
    const bool value = kind == Part::value;
    T* to = cached<T>(args, value ? args.rope.values : args.rope.keys, p, position);
    for_items<T, kVector>(g, [&](int i, int at) {
      store<T, kVector>(to + at, x.low[i]);
      store<T, kVector>(to + g.half + at, x.high[i]);
    });
    if (own >= kStages * kKeys) continue;
    auto& stage = value ? shared.values[own / kKeys] : shared.keys[own / kKeys];
    stage_head(x, g, stage[own % kKeys]);
  }
}

// The new rows' keys and values of a stage that was not being filled when they were made, from the
// cache, into which this block has written them.
template <typename T>
__device__ __forceinline__ void stage_new_rows(const RopeAttentionArgs& args, const Place& p,
                                               Shared<T>& shared, int stage, int thread) {
  constexpr int kVectors = kDim / kVector;
  if (stage >= p.stages() || thread >= 2 * kVectors) return;
  const bool value = thread >= kVectors;
  const int at = thread % kVectors * kVector;
  for (int row = 0; row < p.rows; ++row) {
    const int position = p.position(row), own = Place::own(position);
    if (!p.owns(position) || own / kKeys != stage) continue;
    const T* from = cached<T>(args, value ? args.rope.values : args.rope.keys, p, position);
    auto& to = value ? shared.values[stage % kStages] : shared.keys[stage % kStages];
    *reinterpret_cast<uint4*>(&to[own % kKeys][at]) =
        __ldcg(reinterpret_cast<const uint4*>(from + at));
  }
}

// k q^T of a stage: a warp has 16 keys and 8 columns.
template <typename T>
__device__ __forceinline__ void multiply_keys(const Place& p, Shared<T>& shared, int stage,
                                              int warp, int lane) {
  static_assert(kKeys / kTile * (kColumns / kEight) == kWarps);
  const int first = warp % (kKeys / kTile) * kTile, column = warp / (kKeys / kTile) * kEight;
  if (first >= p.tiles(stage) * kTile || column >= p.columns) return;
  const T* keys = &shared.keys[stage % kStages][first + lane % kTile][lane / kTile * kEight];
  const T* queries = &shared.queries[column + lane % kEight][lane / kEight * kEight];
  float logits[4] = {};
#pragma unroll
  for (int at = 0; at < kDim; at += 2 * kTile) {
    unsigned low[4], high[4], both[4];
    load_matrices(low, keys + at);
    load_matrices(high, keys + at + kTile);
    load_matrices(both, queries + at);
    multiply<T>(logits, low, both[0], both[1]);
    multiply<T>(logits, high, both[2], both[3]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    shared.logits[column + 2 * (lane % 4) + i % 2][first + lane / 4 + i / 2 * kEight] = logits[i];
}

// The running softmax of a column, of which 16 threads have every 16th key.
struct Running {
  float most = kNone, weight = 0;
};
constexpr int kSharers = kThreads / kColumns;

// Turns the logits of a stage into weights. Keys before `seen` count. `keeps`: what the sums so far
// are multiplied with.
template <typename T>
__device__ __forceinline__ void weigh(const Place& p, Shared<T>& shared, float (&keeps)[kColumns],
                                      Running& r, int stage, int seen, float scale, int thread) {
  const int column = thread / kSharers, sharer = thread % kSharers;
  const int there = p.owned - stage * kKeys;
  float logits[kKeys / kSharers];
  bool counts[kKeys / kSharers];
  float most = r.most;
#pragma unroll
  for (int i = 0; i < kKeys / kSharers; ++i) {
    const int own = i * kSharers + sharer;
    counts[i] = own < there && p.key(stage * kKeys + own) < seen;
    logits[i] = counts[i] ? shared.logits[column][own] * scale : kNone;
    most = fmaxf(most, logits[i]);
  }
#pragma unroll
  for (int offset = kSharers / 2; offset > 0; offset /= 2)
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
  const float keep = __expf(r.most - most);
  r.most = most;
  r.weight *= keep;
  if (sharer == 0) keeps[column] = keep;
#pragma unroll
  for (int i = 0; i < kKeys / kSharers; ++i) {
    const float weight = counts[i] ? __expf(logits[i] - most) : 0.0f;
    r.weight += weight;
    shared.weights[column][i * kSharers + sharer] = round_to<T>(weight);
  }
}

// sums [columns, 16 of the head's elements] += weights * values: of the columns lane / 4 and the
// same + 8, elements 2 * (lane % 4) and the next, the same + 8.
template <typename T>
__device__ __forceinline__ void add_values(const Place& p, Shared<T>& shared,
                                           const float (&keeps)[kColumns], float (&sums)[2][4],
                                           int stage, int warp, int lane) {
  static_assert(kWarps * kTile == kDim && kColumns == kTile);
  const float low = keeps[lane / 4], high = keeps[lane / 4 + kEight];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    sums[n][0] *= low;
    sums[n][1] *= low;
    sums[n][2] *= high;
    sums[n][3] *= high;
  }
  const int halves = lane / kTile * kEight;
  for (int k = 0; k < p.tiles(stage) * kTile; k += kTile) {
    unsigned weights[4], values[4];
    load_matrices(weights, &shared.weights[lane % kTile][k + halves]);
    load_transposed(values,
                    &shared.values[stage % kStages][k + lane % kTile][warp * kTile + halves]);
    multiply<T>(sums[0], weights, values[0], values[1]);
    multiply<T>(sums[1], weights, values[2], values[3]);
  }
}

// To each column's block.
template <typename T>
__device__ __forceinline__ void hand_over(const Place& p, Shared<T>& shared,
                                          const float (&sums)[2][4], const Running& r, int thread) {
  const int warp = thread / kWarp, lane = thread % kWarp;
  float* mine = shared.parts[p.block];
  float weight = r.weight;
#pragma unroll
  for (int offset = kSharers / 2; offset > 0; offset /= 2)
    weight += __shfl_xor_sync(kAllLanes, weight, offset);
  if (thread % kSharers == 0 && thread / kSharers < p.columns)
    store_there(mine + kDim, thread / kSharers, r.most, weight);
  if (p.owned == 0) return;  // its weight says that nothing is there
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = lane / 4 + half * kEight;
    if (column >= p.columns) continue;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      store_there(mine + warp * kTile + n * kEight + 2 * (lane % 4), column, sums[n][2 * half],
                  sums[n][2 * half + 1]);
    }
  }
}

// The column of this block, an element in each of kDim threads.
template <typename T>
__device__ __forceinline__ void join_parts(const RopeAttentionArgs& args, const Place& p,
                                           const Shared<T>& shared, int thread) {
  if (thread >= kDim) return;
  float most = kNone, total = 0, sum = 0;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) most = fmaxf(most, shared.parts[b][kDim]);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const float keep = __expf(shared.parts[b][kDim] - most), weight = shared.parts[b][kDim + 1];
    total += weight * keep;
    if (weight > 0) sum += shared.parts[b][thread] * keep;
  }
  const std::int64_t to = p.row(p.block) * args.rope.heads + p.head(p.block);
  static_cast<T*>(args.out)[to * kDim + thread] = round_to<T>(sum / total);
}
#endif

// blockIdx.x: (key head, block of its cluster)
template <typename T, bool kEveryStep>
__global__ void __launch_bounds__(kThreads, 2)
    rope_attention_kernel(const __grid_constant__ RopeAttentionArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 dynamic[];
  __shared__ float keeps[kColumns];
  Shared<T>& shared = *reinterpret_cast<Shared<T>*>(dynamic);
  let_next_start();
  arrive_in_cluster();
  Place p = Place::of(args);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  fetch_ahead<T>(args, p, thread);
  await_predecessors();
  const int count = __ldcg(args.key_count);
  if (count < p.rows || count > args.rope.capacity) __trap();
  p.set_count(count);
  for (int stage = 0; stage < kStages; ++stage) fetch_stage(args, p, shared, stage, thread);
  norm_and_place_rows<T, kEveryStep>(args, p, shared, thread);

  const int row = min(p.row(thread / kSharers), p.rows - 1);
  const int seen = args.causal ? p.position(row) + 1 : p.count;
  Running running;
  float sums[2][4] = {};
  for (int stage = 0; stage < p.stages(); ++stage) {
    await_fetches<kStages - 1>();
    __syncthreads();
    multiply_keys(p, shared, stage, warp, lane);
    __syncthreads();
    weigh(p, shared, keeps, running, stage, seen, args.scale, thread);
    __syncthreads();
    add_values(p, shared, keeps, sums, stage, warp, lane);
    __syncthreads();
    fetch_stage(args, p, shared, stage + kStages, thread);
    stage_new_rows(args, p, shared, stage + kStages, thread);
  }

  await_cluster();  // every block has begun, so that its shared memory is there
  hand_over(p, shared, sums, running, thread);
  arrive_in_cluster();
  if (p.block >= p.columns) return;
  await_cluster();
  join_parts(args, p, shared, thread);
#endif
}

// A cluster of more than 8 blocks must be asked for.
template <typename T>
void allow_launch(void (*kernel)(RopeAttentionArgs)) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<T>));
  cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

template <typename T, bool kEveryStep>
const char* launch(const RopeAttentionArgs& args, CUstream_st* stream) {
  const auto kernel = rope_attention_kernel<T, kEveryStep>;
  allow_launch<T>(kernel);
  launch_chained({.cluster = kBlocks}, kernel, static_cast<unsigned>(args.rope.kv_heads * kBlocks),
                 kThreads, sizeof(Shared<T>), stream, args);
  return launch_error();
}

template <typename T>
const char* launch(const RopeAttentionArgs& args, CUstream_st* stream) {
  return args.rope.round_every_step ? launch<T, true>(args, stream)
                                    : launch<T, false>(args, stream);
}

}  // namespace

const char* rope_attention_unsupported(const RopeAttentionArgs& args) {
  const QkNormRopeArgs& rope = args.rope;
  if (const char* reason = qk_norm_rope_unsupported(rope)) return reason;
  if (rope.dtype == DType::f32) return "rows are not of bfloat16 or float16";
  if (rope.head_dim != kDim) return "heads are not of 128";
  if (rope.samples != 1) return "there are several samples";
  const RowSet& rows = rope.sets[0].rows;
  if (rope.rows < 1 || rows.index != nullptr || rows.first != 0 || rows.count != rope.rows)
    return "not all rows are in the first set, as a range";
  if (rope.heads % rope.kv_heads != 0) return "heads is not a multiple of kv_heads";
  if (rope.rows * (rope.heads / rope.kv_heads) > kRopeAttentionQueries)
    return "more than 16 queries share a key head";
  if (rope.capacity * rope.kv_heads > std::int64_t{0x7fffffff} / kDim)
    return "the cache has more than 2^31 elements";
  for (const void* pointer :
       {rope.qkv, rope.sets[0].q_weight, rope.sets[0].k_weight, static_cast<const void*>(rope.cos),
        static_cast<const void*>(rope.sin), static_cast<const void*>(rope.keys),
        static_cast<const void*>(rope.values)}) {
    if (!aligned(pointer)) return "rows do not begin at multiples of 16 bytes";
  }
  if (!vectors_fit(rope.dtype, rope.qkv_stride) || !vectors_fit(DType::f32, rope.cos_stride) ||
      !vectors_fit(DType::f32, rope.sin_stride))
    return "rows do not begin at multiples of 16 bytes";
  return nullptr;
}

// A part of a GPU may have no room for such a cluster.
bool rope_attention_runs_here() {
  using T = __nv_bfloat16;
  const auto kernel = rope_attention_kernel<T, true>;
  if (!has_hopper_code(kernel)) return false;
  allow_launch<T>(kernel);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = kBlocks;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(Shared<T>);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int at_once = 0;
  return cudaOccupancyMaxActiveClusters(&at_once, kernel, &config) == cudaSuccess && at_once > 0;
}

const char* rope_attention(const RopeAttentionArgs& args, CUstream_st* stream) {
  if (const char* reason = rope_attention_unsupported(args)) return reason;
  return args.rope.dtype == DType::bf16 ? launch<__nv_bfloat16>(args, stream)
                                        : launch<__half>(args, stream);
}

}  // namespace diptych::kernels

#include "kernels/decode_attention/decode_attention.h"
#include "kernels/device_chain.cuh"
#include "kernels/device_matrices.cuh"

namespace diptych::kernels {
namespace {

constexpr int kThreads = 128;
// Query heads that a block serves with each key it reads, kHeads below: as many as share a key
// head.
constexpr int kFewHeads = 4, kMostHeads = 8;
constexpr int kParts = kDecodeParts;  // 32 x 4 key heads fill the 132 multiprocessors of an H200
constexpr int kPartsAtOnce = 8;       // that are joined
constexpr int kExtra = kDecodeExtra;
constexpr std::int64_t kMaxDim = 256;
constexpr std::int64_t kMaxRows = 65535;  // blocks of a grid in y and z
constexpr float kNone = -1e30f;  // below every logit; finite, so that differences stay numbers

// A running softmax of kHeads heads over some keys; a lane holds kCount columns of the sums.
template <int kHeads, int kCount>
struct Running {
  float most[kHeads], weight[kHeads], sum[kHeads][kCount];
};

template <int kHeads, int kCount>
__device__ __forceinline__ void start(Running<kHeads, kCount>& r) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    r.most[h] = kNone;
    r.weight[h] = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) r.sum[h][i] = 0;
  }
}

struct Place {
  std::int64_t group, first_head, kv_head;  // heads of this block, and the key head they read
  int heads;
};

// Whose keys a row reads; samples are few.
__device__ __forceinline__ std::int64_t sample_of(const DecodeAttentionArgs& args,
                                                  std::int64_t row) {
  std::int64_t sample = 0;
  while (sample + 1 < args.samples && args.query_starts[sample + 1] <= row) ++sample;
  return sample;
}

// Keys of a sample.
__device__ __forceinline__ std::int64_t keys_of(const DecodeAttentionArgs& args,
                                                std::int64_t sample) {
  return min(static_cast<std::int64_t>(max(args.key_count[sample], 1)), args.capacity);
}
// Behind the last row of a sample.
__device__ __forceinline__ std::int64_t end_row_of(const DecodeAttentionArgs& args,
                                                   std::int64_t sample) {
  return args.query_starts == nullptr ? args.rows : args.query_starts[sample + 1];
}

template <int kHeads>
__device__ __forceinline__ Place place_of(const DecodeAttentionArgs& args) {
  Place p;
  p.group = args.heads / args.kv_heads;
  const std::int64_t slices = (p.group + kHeads - 1) / kHeads;
  p.kv_head = blockIdx.x / slices;
  const std::int64_t within = blockIdx.x % slices * kHeads;
  p.first_head = p.kv_head * p.group + within;
  p.heads = static_cast<int>(min(static_cast<std::int64_t>(kHeads), p.group - within));
  return p;
}

__device__ __forceinline__ float* part_of(const DecodeAttentionArgs& args, std::int64_t row,
                                          std::int64_t head, int part) {
  return args.parts + ((row * args.heads + head) * kParts + part) * (args.head_dim + kExtra);
}

// The scaled queries of a block's heads, of which a lane holds kCount columns. A block with fewer
// heads repeats its last one.
template <typename T, int kHeads, int kCount>
__device__ __forceinline__ void load_queries(const DecodeAttentionArgs& args, const Place& p,
                                             std::int64_t row, int lane,
                                             float (&q)[kHeads][kCount]) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const std::int64_t head = p.first_head + min(h, p.heads - 1);
    const Vector<T, kCount> from = load<T, kCount>(
        static_cast<const T*>(args.q) + row * args.q_stride + head * args.head_dim + lane * kCount);
#pragma unroll
    for (int i = 0; i < kCount; ++i) q[h][i] = widen(from.at[i]) * args.scale;
  }
}

// Adds one key, which `lanes` lanes share. `mine`: it counts.
template <typename T, int kHeads, int kCount>
__device__ __forceinline__ void add_key(Running<kHeads, kCount>& r,
                                        const float (&q)[kHeads][kCount],
                                        const Vector<T, kCount>& k, const Vector<T, kCount>& v,
                                        bool mine, int lanes) {
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) dot += q[h][i] * widen(k.at[i]);
    const float whole = sum_lanes(dot, lanes);
    dot = mine ? whole : kNone;
    const float most = fmaxf(r.most[h], dot);
    const float keep = __expf(r.most[h] - most), weight = mine ? __expf(dot - most) : 0.0f;
    r.most[h] = most;
    r.weight[h] = r.weight[h] * keep + weight;
#pragma unroll
    for (int i = 0; i < kCount; ++i) r.sum[h][i] = r.sum[h][i] * keep + weight * widen(v.at[i]);
  }
}

// Puts a team's sums into shared memory: [team][head][dim + kExtra].
template <int kHeads, int kCount>
__device__ __forceinline__ void share_sums(const Running<kHeads, kCount>& r, float* shared,
                                           std::int64_t dim, int team, int lane) {
  const std::int64_t width = dim + kExtra;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float* mine = shared + (team * kHeads + h) * width;
#pragma unroll
    for (int i = 0; i < kCount; ++i) mine[lane * kCount + i] = r.sum[h][i];
    if (lane == 0) {
      mine[dim] = r.most[h];
      mine[dim + 1] = r.weight[h];
    }
  }
}

// Joins the teams' sums of one of the block's heads. Writes them to `to`, [dim + kExtra].
template <int kHeads>
__device__ __forceinline__ void join_teams(const float* shared, std::int64_t dim, int teams, int h,
                                           int thread, float* to) {
  const std::int64_t width = dim + kExtra;
  float most = kNone, total = 0;
  for (int t = 0; t < teams; ++t) most = fmaxf(most, shared[(t * kHeads + h) * width + dim]);
  for (std::int64_t d = thread; d < dim; d += kThreads) {
    float sum = 0;
    for (int t = 0; t < teams; ++t) {
      const float* from = shared + (t * kHeads + h) * width;
      sum += from[d] * __expf(from[dim] - most);
    }
    to[d] = sum;
  }
  for (int t = 0; t < teams; ++t) {
    const float* from = shared + (t * kHeads + h) * width;
    total += from[dim + 1] * __expf(from[dim] - most);
  }
  if (thread == 0) {
    to[dim] = most;
    to[dim + 1] = total;
  }
}

// Marks a part without keys, of which join_parts() reads nothing else.
__device__ __forceinline__ void leave_empty(float* part, std::int64_t dim) {
  part[dim] = kNone;
  part[dim + 1] = 0;
}

// `lanes` neighbouring lanes share a key, kThreads / lanes keys are read at once: fewer are no
// part.
template <typename T, int kHeads, int kCount>
__global__ void __launch_bounds__(kThreads) attend_part(const DecodeAttentionArgs args, int lanes) {
  extern __shared__ float shared[];
  let_next_start();
  await_predecessors();
  const Place p = place_of<kHeads>(args);
  const int part = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int lane = thread % lanes, team = thread / lanes, teams = kThreads / lanes;
  const std::int64_t dim = args.head_dim, row = blockIdx.z, sample = sample_of(args, row);
  float q[kHeads][kCount];  // on their way beside the numbers of keys
  load_queries<T, kHeads, kCount>(args, p, row, lane, q);
  const std::int64_t later = args.causal ? end_row_of(args, sample) - 1 - row : 0;
  const std::int64_t keys = max(keys_of(args, sample) - later, std::int64_t{1});
  const std::int64_t each = max((keys + kParts - 1) / kParts, static_cast<std::int64_t>(teams));
  const std::int64_t begin = part * each, end = min(begin + each, keys);
  if (begin >= end) {  // the whole block
    if (thread < p.heads) leave_empty(part_of(args, row, p.first_head + thread, part), dim);
    return;
  }

  Running<kHeads, kCount> r;
  start(r);
  const std::int64_t start_at = sample * args.sample_stride + p.kv_head * dim + lane * kCount;
  const T* at = static_cast<const T*>(args.keys) + start_at;
  const T* values = static_cast<const T*>(args.values) + start_at;
  // The same counts for all threads: the sums of a key take whole warps.
  constexpr int kAtOnce = kHeads == kFewHeads ? 4 : 2;  // keys of a team on their way
  for (std::int64_t first = begin; first < end; first += kAtOnce * teams) {
    Vector<T, kCount> k[kAtOnce], v[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t key = first + i * teams + team;
      const std::int64_t offset = (key < end ? key : begin) * args.key_stride;
      k[i] = load<T, kCount>(at + offset);
      v[i] = load<T, kCount>(values + offset);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t from = first + i * teams;
      if (from < end) add_key<T, kHeads, kCount>(r, q, k[i], v[i], from + team < end, lanes);
    }
  }

  share_sums(r, shared, dim, team, lane);
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h < p.heads)
      join_teams<kHeads>(shared, dim, teams, h, thread, part_of(args, row, p.first_head + h, part));
  }
}

// Several rows: the queries of a sample that share a key head are the rows of a matrix, and 16 of
// them meet 16 keys in tensor cores. Of the fragments of mma.m16n8k16 (PTX ISA, 9.7.14) thread 4 g
// + t of a warp holds rows g and g + 8 and of the other dimension places 2 t, 2 t + 1 and 2 t + 8,
// 2 t + 9. Which column of head_dim has which place is free, so that every thread loads whole
// vectors: no shared memory, no transposing.
constexpr int kTile = 16;   // queries of a tile
constexpr int kChunk = 16;  // keys of a warp at once
constexpr int kTileDim = 128;
constexpr int kWarps = kThreads / kWarp;
static_assert(kThreads == kTileDim && kParts == kWarp);

// Two values in one register, the first in its lower half.
template <typename T>
__device__ __forceinline__ unsigned pack(float first, float second) {
  typename PairOf<T>::Type pair;
  round_pair(first, second, &pair);
  return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ __forceinline__ unsigned word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// The running softmax of a tile over some keys: of rows g and g + 8.
struct TileSums {
  float most[2] = {kNone, kNone}, weight[2] = {0, 0};
  // [8 h + e]: columns 64 h + 16 t + e of row g, the same + 8; those of row g + 8.
  float sum[kTileDim / 8][4] = {};
};

struct TilePlace {
  int kv_head, group, first_row, first_pair, pairs;  // a pair: a row's query head

  __device__ __forceinline__ int row(int pair) const { return first_row + pair / group; }
  __device__ __forceinline__ int head(int pair) const { return kv_head * group + pair % group; }
};

// q of the tile as the first factor of 8 products over 16 columns each; zeros where there is none.
template <typename T>
__device__ __forceinline__ void load_tile(const DecodeAttentionArgs& args, const TilePlace& place,
                                          int g, int t, unsigned (&q)[kTileDim / 16][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = place.first_pair + g + 8 * half;
    const bool used = pair < place.pairs;
    const int safe = used ? pair : place.first_pair;
    const T* from = static_cast<const T*>(args.q) + place.row(safe) * args.q_stride +
                    place.head(safe) * kTileDim + 8 * t;
#pragma unroll
    for (int j = 0; j < kTileDim / 32; ++j) {
      const uint4 words =
          used ? *reinterpret_cast<const uint4*>(from + 32 * j) : make_uint4(0, 0, 0, 0);
      q[2 * j][half] = words.x;
      q[2 * j][2 + half] = words.y;
      q[2 * j + 1][half] = words.z;
      q[2 * j + 1][2 + half] = words.w;
    }
  }
}

// A tile's logits of a chunk and then their weights: [n][2 half + c] of key 8 n + 2 t + c.
using ChunkSums = float[2][4];

// Scales the logits of one half of a chunk's queries, turns them into weights, and takes them into
// the running softmax. Keys before `end` count, which may be none. `weights`: the first factor of
// the products with v.
template <typename T>
__device__ __forceinline__ void weigh_chunk(ChunkSums& s, TileSums& r, unsigned (&weights)[4],
                                            int half, std::int64_t first, std::int64_t end, int t,
                                            float scale) {
  float most = r.most[half];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& logit = s[n][2 * half + c];
      logit = first + 8 * n + 2 * t + c < end ? logit * scale : kNone;
      most = fmaxf(most, logit);
    }
  }
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
  most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
  const float keep = __expf(r.most[half] - most);
  r.most[half] = most;
  r.weight[half] *= keep;
#pragma unroll
  for (int i = 0; i < kTileDim / 8; ++i) {
    r.sum[i][2 * half] *= keep;
    r.sum[i][2 * half + 1] *= keep;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& weight = s[n][2 * half + c];
      weight = first + 8 * n + 2 * t + c < end ? __expf(weight - most) : 0.0f;
      r.weight[half] += weight;
    }
    weights[2 * n + half] = pack<T>(s[n][2 * half], s[n][2 * half + 1]);
  }
}

// Keys [first, first + kChunk), of which those before `end` are there. `seen`: those before count
// for the rows g and g + 8.
template <typename T>
__device__ __forceinline__ void attend_chunk(const DecodeAttentionArgs& args, const T* keys,
                                             const T* values, std::int64_t first, std::int64_t end,
                                             const std::int64_t (&seen)[2], int g, int t,
                                             const unsigned (&q)[kTileDim / 16][4], TileSums& r) {
  const auto row = [&](const T* from, int key) {
    return from + min(first + key, end - 1) * args.key_stride;
  };
  uint4 k[2][kTileDim / 32], v[4][2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int j = 0; j < kTileDim / 32; ++j)
      k[n][j] = *reinterpret_cast<const uint4*>(row(keys, 8 * n + g) + 32 * j + 8 * t);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      v[i][h] =
          *reinterpret_cast<const uint4*>(row(values, 2 * t + i % 2 + i / 2 * 8) + 64 * h + 8 * g);
  }

  ChunkSums s = {};
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int j = 0; j < kTileDim / 32; ++j) {
      multiply<T>(s[n], q[2 * j], k[n][j].x, k[n][j].y);
      multiply<T>(s[n], q[2 * j + 1], k[n][j].z, k[n][j].w);
    }
  }
  unsigned weights[4];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    weigh_chunk<T>(s, r, weights, half, first, seen[half], t, args.scale);
#pragma unroll
  for (int i = 0; i < kTileDim / 8; ++i) {
    const int h = i / 8, w = i % 8 / 2;
    const unsigned halves = i % 2 == 0 ? 0x5410 : 0x7632;  // the lower ones of two words, the upper
    multiply<T>(r.sum[i], weights, __byte_perm(word_of(v[0][h], w), word_of(v[1][h], w), halves),
                __byte_perm(word_of(v[2][h], w), word_of(v[3][h], w), halves));
  }
}

// The tile of a block of attend_tile. It has no queries where first_pair >= pairs.
__device__ __forceinline__ TilePlace tile_place_of(const DecodeAttentionArgs& args, int parts) {
  const std::int64_t sample = blockIdx.y;
  TilePlace place;
  place.kv_head = static_cast<int>(blockIdx.x) / parts;
  place.group = static_cast<int>(args.heads / args.kv_heads);
  place.first_row = args.query_starts == nullptr ? 0 : args.query_starts[sample];
  place.pairs = (static_cast<int>(end_row_of(args, sample)) - place.first_row) * place.group;
  place.first_pair = static_cast<int>(blockIdx.z) * kTile;
  return place;
}

// In shared memory: [kWarps, kTile, kTileWidth].
constexpr int kTileWidth = kTileDim + kExtra;

__device__ __forceinline__ void share_sums(const TileSums& r, float* shared, int warp, int g,
                                           int t) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* mine = shared + (warp * kTile + g + 8 * half) * kTileWidth;
#pragma unroll
    for (int i = 0; i < kTileDim / 8; ++i) {
      const int column = i / 8 * 64 + 16 * t + i % 8;
      mine[column] = r.sum[i][2 * half];
      mine[column + 8] = r.sum[i][2 * half + 1];
    }
    const float weight = sum_lanes(r.weight[half], 4);
    if (t == 0) {
      mine[kTileDim] = r.most[half];
      mine[kTileDim + 1] = weight;
    }
  }
}

// Joins the warps' sums of the tile's queries, a column of each in each thread.
__device__ __forceinline__ void join_warps(const DecodeAttentionArgs& args, const TilePlace& place,
                                           int part, const float* shared, int thread) {
  __shared__ float keeps[kTile][kWarps];
  const int queries = min(kTile, place.pairs - place.first_pair);
  const auto to = [&](int query) {
    const int pair = place.first_pair + query;
    return part_of(args, place.row(pair), place.head(pair), part);
  };
  if (thread < queries) {
    float most = kNone, total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      most = fmaxf(most, shared[(w * kTile + thread) * kTileWidth + kTileDim]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* from = shared + (w * kTile + thread) * kTileWidth + kTileDim;
      const float keep = __expf(from[0] - most);
      keeps[thread][w] = keep;
      total += from[1] * keep;
    }
    to(thread)[kTileDim] = most;
    to(thread)[kTileDim + 1] = total;
  }
  __syncthreads();
  constexpr int kAtOnce = 4;
  for (int first = 0; first < queries; first += kAtOnce) {
    float sums[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        sums[i] += shared[(w * kTile + first + i) * kTileWidth + thread] * keeps[first + i][w];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < queries) to(first + i)[thread] = sums[i];
    }
  }
}

// blockIdx: (key head, part of the keys), sample, tile of its queries. Every warp takes each fourth
// chunk of the part.
template <typename T>
__global__ void __launch_bounds__(kThreads) attend_tile(const DecodeAttentionArgs args, int parts) {
  extern __shared__ float shared[];
  let_next_start();
  await_predecessors();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int g = lane / 4, t = lane % 4, part = static_cast<int>(blockIdx.x) % parts;
  const std::int64_t sample = blockIdx.y;
  const TilePlace place = tile_place_of(args, parts);
  if (place.first_pair >= place.pairs) return;  // the whole block

  const std::int64_t count = keys_of(args, sample);
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  // A part has at least a chunk for each warp.
  const std::int64_t each =
      max((chunks + parts - 1) / parts, static_cast<std::int64_t>(kWarps)) * kChunk;
  const std::int64_t begin = part * each, end = min(begin + each, count);
  if (begin >= end) {  // the whole block
    const int pair = place.first_pair + thread;
    if (thread < kTile && pair < place.pairs)
      leave_empty(part_of(args, place.row(pair), place.head(pair), part), kTileDim);
    return;
  }
  const std::int64_t start_at = sample * args.sample_stride + place.kv_head * kTileDim;
  const T* keys = static_cast<const T*>(args.keys) + start_at;
  const T* values = static_cast<const T*>(args.values) + start_at;

  unsigned q[kTileDim / 16][4];
  load_tile<T>(args, place, g, t, q);
  std::int64_t seen[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int later = (place.pairs - 1 - place.first_pair - g - 8 * half) / place.group;
    seen[half] = min(args.causal ? count - max(later, 0) : count, end);
  }
  TileSums r;
  for (std::int64_t first = begin + warp * kChunk; first < end; first += kWarps * kChunk)
    attend_chunk<T>(args, keys, values, first, end, seen, g, t, q, r);

  share_sums(r, shared, warp, g, t);
  __syncthreads();
  join_warps(args, place, part, shared, thread);
}

// Of each row and head, `count` parts, a multiple of kPartsAtOnce.
template <typename T>
__global__ void __launch_bounds__(kThreads) join_parts(const DecodeAttentionArgs args, int count) {
  __shared__ float keeps[kParts];
  let_next_start();
  await_predecessors();
  const std::int64_t head = blockIdx.x, row = blockIdx.y, dim = args.head_dim;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const float* parts = part_of(args, row, head, 0);
  const std::int64_t width = dim + kExtra;
  // A lane for each part; all warps find the same.
  const bool mine = lane < count;
  const float own = mine ? parts[lane * width + dim] : kNone;
  float most = own;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, offset));
  const float keep = mine ? __expf(own - most) : 0.0f;
  const float weight = sum_lanes(mine ? parts[lane * width + dim + 1] * keep : 0.0f, kWarp);
  if (thread < kParts) keeps[thread] = keep;
  __syncthreads();
  for (std::int64_t d = thread; d < dim; d += kThreads) {
    float sum = 0;
    for (int first = 0; first < count; first += kPartsAtOnce) {
#pragma unroll
      for (int i = 0; i < kPartsAtOnce; ++i) {
        const int part = first + i;
        if (keeps[part] > 0) sum += parts[part * width + d] * keeps[part];
      }
    }
    static_cast<T*>(args.out)[(row * args.heads + head) * dim + d] = round_to<T>(sum / weight);
  }
}

std::int64_t lanes_of(const DecodeAttentionArgs& args) {
  return args.head_dim * element_size(args.dtype) / kVectorBytes;
}

std::int64_t shared_bytes(const DecodeAttentionArgs& args, int heads) {
  const std::int64_t teams = kThreads / lanes_of(args);
  return teams * heads * (args.head_dim + kExtra) * static_cast<std::int64_t>(sizeof(float));
}

// Parts of the keys where a sample's queries are so many tiles. Three tiles of 8 key heads fill an
// H200 with half the parts, and a part without keys takes time, too. The number of samples and of
// heads has no say: a row has the same bits alone, beside others, and where a process has a share
// of the heads.
int parts_for(std::int64_t tiles) {
  constexpr std::int64_t kFewTiles = 2;
  return tiles <= kFewTiles ? kParts : kParts / 2;
}

// Returns the number of parts.
template <typename T>
int launch_tiles(const DecodeAttentionArgs& args, CUstream_st* stream) {
  const std::int64_t group = args.heads / args.kv_heads;
  const std::int64_t most_rows = args.most_rows > 0 ? args.most_rows : args.rows;
  // Of samples with fewer rows, what is too many ends at once.
  const std::int64_t tiles = (most_rows * group + kTile - 1) / kTile;
  const int parts = parts_for(tiles);
  const dim3 blocks(static_cast<unsigned>(args.kv_heads * parts),
                    static_cast<unsigned>(args.samples), static_cast<unsigned>(tiles));
  constexpr std::size_t kBytes = kWarps * kTile * kTileWidth * sizeof(float);
  launch_chained({args.rows <= kChainedRows}, attend_tile<T>, blocks, kThreads, kBytes, stream,
                 args, parts);
  return parts;
}

template <typename T, int kHeads, int kCount>
void launch_parts(const DecodeAttentionArgs& args, CUstream_st* stream) {
  const std::int64_t slices = (args.heads / args.kv_heads + kHeads - 1) / kHeads;
  const dim3 blocks(static_cast<unsigned>(args.kv_heads * slices), kParts,
                    static_cast<unsigned>(args.rows));
  const auto bytes = static_cast<std::size_t>(shared_bytes(args, kHeads));  // at most 42 KiB
  launch_chained({args.rows <= kChainedRows}, attend_part<T, kHeads, kCount>, blocks, kThreads,
                 bytes, stream, args, static_cast<int>(lanes_of(args)));
}

template <typename T, int kCount>
void launch(const DecodeAttentionArgs& args, CUstream_st* stream) {
  const bool in_tiles = kInPairs<T, kCount> && args.head_dim == kTileDim && args.rows > 1;
  int parts = kParts;
  if (in_tiles) {
    if constexpr (kInPairs<T, kCount>) parts = launch_tiles<T>(args, stream);
  } else if (args.heads / args.kv_heads <= kFewHeads) {
    launch_parts<T, kFewHeads, kCount>(args, stream);
  } else {
    launch_parts<T, kMostHeads, kCount>(args, stream);
  }
  launch_chained({args.rows <= kChainedRows}, join_parts<T>,
                 dim3(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.rows)),
                 kThreads, 0, stream, args, parts);
}

}  // namespace

const char* decode_attention_unsupported(const DecodeAttentionArgs& args) {
  if (args.heads < 1 || args.kv_heads < 1 || args.heads % args.kv_heads != 0) {
    return "heads is not a multiple of kv_heads";
  }
  const std::int64_t lanes = args.head_dim < 1 || args.head_dim > kMaxDim ? 0 : lanes_of(args);
  const bool power = lanes >= 1 && lanes <= kWarp && (lanes & (lanes - 1)) == 0;
  if (!power || lanes * kVectorBytes != args.head_dim * element_size(args.dtype)) {
    return "a head is not 16 bytes times a power of two up to 32";
  }
  if (args.capacity < 1) return "the cache is empty";
  if (args.rows < 1 || args.rows > kMaxRows) return "rows are not 1 to 65535";
  if (args.most_rows < 0) return "the most rows of a sample are below 0";
  if (args.samples < 1 || args.samples > kMaxRows) return "samples are not 1 to 65535";
  if (args.rows * (args.heads / args.kv_heads) > kTile * kMaxRows)
    return "rows times the heads of a key head are more than 2^20";
  if (args.samples > 1 && args.query_starts == nullptr) return "several samples lack query_starts";
  for (const std::int64_t stride : {args.q_stride, args.key_stride, args.sample_stride}) {
    if (!vectors_fit(args.dtype, stride)) return "rows do not begin at multiples of 16 bytes";
  }
  for (const void* pointer : {args.q, args.keys, args.values}) {
    if (!aligned(pointer)) return "q, keys or values do not begin at a multiple of 16 bytes";
  }
  return nullptr;
}

const char* decode_attention(const DecodeAttentionArgs& args, CUstream_st* stream) {
  if (const char* reason = decode_attention_unsupported(args)) return reason;
  return launch_typed(args.dtype, true, [&]<typename T, int kCount>() {
    if constexpr (kCount > 1) launch<T, kCount>(args, stream);
  });
}

}  // namespace diptych::kernels

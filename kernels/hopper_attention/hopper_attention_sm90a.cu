#include "kernels/device_hopper.cuh"
#include "kernels/device_pipeline.cuh"
#include "kernels/hopper_attention/hopper_attention.h"
#include "kernels/host_hopper.h"

namespace diptych::kernels {
namespace {

constexpr int kHeadDim = static_cast<int>(kHopperHeadDim);
constexpr int kTileRows = static_cast<int>(kHopperQueryTile);  // of a block
constexpr int kGroupRows = kTileRows / kMultiplying;
static_assert(kGroupRows == 64);
constexpr int kTileKeys = 160;  // the speeds of 128 to 192 are within 3 % of each other on an H200
constexpr int kStages = 2;      // of keys, and of values
// Tiles lie in panels of 64 columns, whose rows are 128 bytes.
constexpr int kPanelDims = 64, kPanels = kHeadDim / kPanelDims;
constexpr int kQPanelBytes = kTileRows * kSwizzledBytes, kQBytes = kPanels * kQPanelBytes;
constexpr int kPanelBytes = kTileKeys * kSwizzledBytes, kTileBytes = kPanels * kPanelBytes;
constexpr int kSharedBytes = kQBytes + 2 * kStages * kTileBytes + kTileAlignment;
[[maybe_unused]] constexpr int kDepth = 16;  // of one product
// Of a thread: a warpgroup has 64 x kTileKeys scores and 64 x kHeadDim outputs.
constexpr int kScores = kTileKeys / 2, kOutputs = kHeadDim / 2;
[[maybe_unused]] constexpr int kWords = kScores / 2;  // the scores in pairs of 16 bits
[[maybe_unused]] constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
// By how many powers of two a weight may exceed 1 before sums are rescaled to a new largest logit.
[[maybe_unused]] constexpr float kSlack = 8;

// Code for older architectures has no body, and so no use for some of these names.

// How a kernel is made: kBlocks of a cluster share what they load of keys and values.
template <typename T, bool kCausalMask, int kClusterOf>
struct Kind {
  using Element = T;
  using Causal = std::bool_constant<kCausalMask>;
  static constexpr int kBlocks = kClusterOf;
  static constexpr int kLoadedKeys = kTileKeys / kBlocks;  // of a tile, by one block for all
  static_assert(kLoadedKeys % kSwizzleRows == 0);
};

struct AttentionBarriers {
  std::uint64_t q_filled, q_emptied;
  StageBarriers<kStages> keys, values;
};

struct Shared {
  char *q, *keys, *values;
};

// Rows of q that a cluster takes, and what they are multiplied with.
struct Place {
  int sample, head;
  int first_row;  // of q, of the cluster's
  int end_row;    // of the sample's rows of q
  int keys;       // that count
  int seen;       // by the cluster's first row; its row i sees i more where there is a mask
  int tiles;      // of keys
};

template <typename K>
__device__ __forceinline__ Place place_of(const HopperAttentionArgs& args, std::int64_t item,
                                          std::int64_t of_head) {
  constexpr int kClusterRows = K::kBlocks * kTileRows;
  Place place{};
  place.head = static_cast<int>(item / of_head);
  int left = static_cast<int>(item % of_head);
  int start = 0;
  for (;; ++place.sample) {
    start = args.query_starts[place.sample];
    place.end_row = args.query_starts[place.sample + 1];
    const int items = (place.end_row - start + kClusterRows - 1) / kClusterRows;
    if (left < items) break;
    left -= items;
  }
  place.first_row = start + left * kClusterRows;
  place.keys = min(max(args.key_counts[place.sample], 1), static_cast<int>(args.capacity));
  place.seen = place.keys;
  int most = place.keys;
  if constexpr (K::Causal::value) {
    place.seen = place.keys - (place.end_row - place.first_row) + 1;
    most = min(most, place.seen + kClusterRows - 1);
  }
  place.tiles = (most + kTileKeys - 1) / kTileKeys;
  return place;
}

template <int kBlocks>
__host__ __device__ std::int64_t items_of_head(const HopperAttentionArgs& args) {
  return kBlocks == 1 ? args.query_tiles : args.query_tile_pairs;
}

// Calls body(place) for each place of this cluster; both sides take the same in the same order. The
// places of a head follow each other: what runs at a time then shares keys and values in L2.
template <typename K, typename Body>
__device__ __forceinline__ void for_places(const HopperAttentionArgs& args, const Body& body) {
  const std::int64_t of_head = items_of_head<K::kBlocks>(args);
  for (std::int64_t item = blockIdx.x / K::kBlocks; item < of_head * args.heads;
       item += gridDim.x / K::kBlocks) {
    body(place_of<K>(args, item, of_head));
  }
}

// By one thread of a block. Each block loads its own rows of q, and its part of each tile of keys
// and values for all of the cluster.
template <typename K>
__device__ __forceinline__ void fill_shared(AttentionBarriers& barriers, const Shared& shared,
                                            const HopperAttentionArgs& args,
                                            const CUtensorMap* q_map, const CUtensorMap* keys_map,
                                            const CUtensorMap* values_map, int block) {
  Ring<kStages> keys, values;
  unsigned q_parity = 1;
  const int group = static_cast<int>(args.heads / args.kv_heads);
  for_places<K>(args, [&](const Place& place) {
    await_phase(&barriers.q_emptied, q_parity);
    q_parity ^= 1;
    expect_bytes(&barriers.q_filled, kQBytes);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      load_box(shared.q + panel * kQPanelBytes, q_map, &barriers.q_filled, panel * kPanelDims,
               place.head, place.first_row + block * kTileRows);
    }
    const int kv_head = place.head / group;
    const auto load = [&](Ring<kStages>& ring, StageBarriers<kStages>& of, char* tiles,
                          const CUtensorMap* map, int tile) {
      await_phase(&of.emptied[ring.stage], ring.parity ^ 1);
      std::uint64_t* const filled = &of.filled[ring.stage];
      expect_bytes(filled, kTileBytes);
      char* const at = tiles + ring.stage * kTileBytes + block * K::kLoadedKeys * kSwizzledBytes;
      const int first_key = tile * kTileKeys + block * K::kLoadedKeys;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        char* const to = at + panel * kPanelBytes;
        if constexpr (K::kBlocks == 1) {
          load_box(to, map, filled, panel * kPanelDims, kv_head, first_key, place.sample);
        } else {
          load_box_for(kAllOfCluster, to, map, filled, panel * kPanelDims, kv_head, first_key,
                       place.sample);
        }
      }
      ring.next();
    };
    for (int tile = 0; tile <= place.tiles; ++tile) {  // values are needed after the next keys
      if (tile < place.tiles) load(keys, barriers.keys, shared.keys, keys_map, tile);
      if (tile > 0) load(values, barriers.values, shared.values, values_map, tile - 1);
    }
  });
}

// Of the two rows of a thread: q, then q + 8, as a product's sums have them. Logits are in powers
// of two.
struct Softmax {
  float most[2];    // the logits that weights are relative to
  float sum[2];     // of this thread's weights
  float factor[2];  // that older sums must be multiplied with
  bool rescales;    // whether one of a warp's factors is not 1
};

// Makes weights of scores: exp2(scale * score - most).
template <bool kFirst>
__device__ __forceinline__ void weigh(float (&scores)[kScores], Softmax& softmax, float scale) {
  // Two chains a row, because each link waits for the one before.
  float most[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
  for (int i = 4; i < kScores; ++i) most[i % 4] = fmaxf(most[i % 4], scores[i]);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float all = fmaxf(most[2 * row], most[2 * row + 1]);
    all = fmaxf(all, __shfl_xor_sync(kAllLanes, all, 1));
    most[row] = fmaxf(all, __shfl_xor_sync(kAllLanes, all, 2)) * scale;
  }
  if constexpr (kFirst) {
    softmax.most[0] = most[0];
    softmax.most[1] = most[1];
    softmax.rescales = false;
  } else {
    const bool beyond = most[0] - softmax.most[0] > kSlack || most[1] - softmax.most[1] > kSlack;
    softmax.rescales = __any_sync(kAllLanes, beyond);
    if (softmax.rescales) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        // Of each row by itself: its bits must not depend on the others of the warp.
        if (!(most[row] - softmax.most[row] > kSlack)) most[row] = softmax.most[row];
        softmax.factor[row] = exp2f(softmax.most[row] - most[row]);
        softmax.most[row] = most[row];
        softmax.sum[row] *= softmax.factor[row];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    asm("ex2.approx.ftz.f32 %0, %1;"
        : "=f"(scores[i])
        : "f"(fmaf(scores[i], scale, -softmax.most[i / 2 % 2])));
  }
  float sum[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
  for (int i = 4; i < kScores; ++i) sum[i % 4] += scores[i];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float all = sum[2 * row] + sum[2 * row + 1];
    softmax.sum[row] = kFirst ? all : softmax.sum[row] + all;
  }
}

// Hides the scores of a tile that its row does not see. `seen`: how many row q would see, counted
// from the tile's first key, of the `keys` that count; where there is a mask, row q + 8 sees 8
// more.
template <bool kCausal>
__device__ __forceinline__ void hide(float (&scores)[kScores], int seen, int keys, int lane) {
  const int low = min(seen, keys), high = kCausal ? min(seen + 8, keys) : low;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int column = i / 4 * 8 + 2 * (lane % 4) + i % 2;
    if (column >= (i / 2 % 2 == 0 ? low : high)) scores[i] = -INFINITY;
  }
}

template <typename T>
__device__ __forceinline__ unsigned round_to_word(float low, float high) {
  typename PairOf<T>::Type pair;
  round_pair(low, high, &pair);
  return *reinterpret_cast<unsigned*>(&pair);
}

// Among four neighbouring lanes: lane i's words[p] becomes lane p's words[i].
[[maybe_unused]] __device__ __forceinline__ void transpose_quad(unsigned (&words)[4], int lane) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const unsigned got = __shfl_xor_sync(kAllLanes, upper ? words[i] : words[i + step], step);
      words[i] = upper ? got : words[i];
      words[i + step] = upper ? words[i + step] : got;
    }
  }
}

// A thread's two rows of outputs times `by`. Four lanes write 64 bytes of a row at a time.
template <typename T>
__device__ __forceinline__ void write_rows(const HopperAttentionArgs& args, const Place& place,
                                           const float (&outputs)[kOutputs], const float (&by)[2],
                                           int first_row, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half;
    T* const to = static_cast<T*>(args.out) +
                  (static_cast<std::int64_t>(row) * args.heads + place.head) * kHeadDim;
#pragma unroll
    for (int i = 0; i < kHeadDim / 32; ++i) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* const sums = outputs + 16 * i + 4 * j + 2 * half;
        words[j] = round_to_word<T>(sums[0] * by[half], sums[1] * by[half]);
      }
      transpose_quad(words, lane);
      if (row < place.end_row)
        store_words(to + 32 * i + 8 * (lane % 4), uint4{words[0], words[1], words[2], words[3]});
    }
  }
}

// By a warpgroup, for 64 rows of each place. FlashAttention-3 makes its warpgroups take turns by
// barriers; here they find turns by themselves, and barriers cost 5 % on an H200.
template <typename K>
__device__ __forceinline__ void attend(AttentionBarriers& barriers, const Shared& shared,
                                       const HopperAttentionArgs& args, const Worker& worker) {
  using T = typename K::Element;
  const int group = worker.group, thread = worker.thread, lane = thread % kWarp;
  const float scale = args.scale * kLog2E;
  Ring<kStages> keys, values;
  unsigned q_parity = 0;
  const std::uint64_t q = tile_descriptor(shared.q + group * kGroupRows * kSwizzledBytes);
  const std::uint64_t first_keys = tile_descriptor(shared.keys);
  const std::uint64_t first_values = tile_descriptor(shared.values, kPanelBytes);
  const auto release = [&](Ring<kStages>& ring, StageBarriers<kStages>& of) {
    std::uint64_t* const emptied = &of.emptied[ring.stage];
    if constexpr (K::kBlocks == 1) {
      if (thread == 0) arrive_here(emptied);
    } else {
      if (thread < K::kBlocks) arrive_at(emptied, static_cast<unsigned>(thread));
    }
    ring.next();
  };
  const auto multiply_keys = [&](float(&scores)[kScores]) {
    await_phase(&barriers.keys.filled[keys.stage], keys.parity);
    const std::uint64_t at =
        first_keys + static_cast<std::uint64_t>(keys.stage * (kTileBytes >> 4));
    begin_products();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int k = 0; k < kPanelDims / kDepth; ++k) {
        multiply_64x160<T>(scores, q + panel * (kQPanelBytes >> 4) + k * kDescriptorStep,
                           at + panel * (kPanelBytes >> 4) + k * kDescriptorStep,
                           panel > 0 || k > 0);
      }
    }
    end_of_products();
  };
  const auto multiply_values = [&](float(&outputs)[kOutputs], const unsigned(&words)[kWords],
                                   bool adds) {
    constexpr std::uint64_t kStep = kDepth * kSwizzledBytes >> 4;
    await_phase(&barriers.values.filled[values.stage], values.parity);
    const std::uint64_t at =
        first_values + static_cast<std::uint64_t>(values.stage * (kTileBytes >> 4));
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileKeys / kDepth; ++k) {
      multiply_registers<T, true>(outputs, *reinterpret_cast<const unsigned(*)[4]>(&words[4 * k]),
                                  at + k * kStep, adds || k > 0);
    }
    end_of_products();
  };
  const auto round_weights = [](unsigned(&words)[kWords], const float(&scores)[kScores]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = round_to_word<T>(scores[2 * i], scores[2 * i + 1]);
  };

  for_places<K>(args, [&](const Place& place) {
    const int within = static_cast<int>(worker.block) * kTileRows + group * kGroupRows +
                       thread / kWarp * 16 + lane / 4;  // the thread's first row in the cluster's
    const int first_row = place.first_row + within;
    const int seen = K::Causal::value ? place.seen + within : place.keys;
    float scores[kScores], outputs[kOutputs];
    unsigned words[kWords];
    Softmax softmax;

    await_phase(&barriers.q_filled, q_parity);
    q_parity ^= 1;
    multiply_keys(scores);
    await_products<0>();
    hold(scores);
    release(keys, barriers.keys);
    hide<K::Causal::value>(scores, seen, place.keys, lane);
    weigh<true>(scores, softmax, scale);
    round_weights(words, scores);

    const auto step = [&](int tile, auto masked) {
      multiply_keys(scores);
      multiply_values(outputs, words, tile > 1);
      await_products<1>();
      hold(scores);
      release(keys, barriers.keys);
      if constexpr (decltype(masked)::value)
        hide<K::Causal::value>(scores, seen - tile * kTileKeys, place.keys - tile * kTileKeys,
                               lane);
      weigh<false>(scores, softmax, scale);
      await_products<0>();
      hold(outputs);
      release(values, barriers.values);
      round_weights(words, scores);
      if (softmax.rescales) {
#pragma unroll
        for (int i = 0; i < kOutputs; ++i) outputs[i] *= softmax.factor[i / 2 % 2];
      }
    };
    // Tiles that every row of the cluster sees whole need no mask.
    const int whole = min(place.seen, place.keys) / kTileKeys;
    int tile = 1;
    for (; tile < whole; ++tile) step(tile, std::false_type{});
    for (; tile < place.tiles; ++tile) step(tile, std::true_type{});
    if (thread == 0) arrive_here(&barriers.q_emptied);

    multiply_values(outputs, words, place.tiles > 1);
    await_products<0>();
    hold(outputs);
    release(values, barriers.values);
    float by[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float& sum = softmax.sum[row];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      by[row] = 1 / sum;
    }
    write_rows<T>(args, place, outputs, by, first_row, lane);
    if (args.log_sum_exp != nullptr && lane % 4 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row + 8 * half;
        if (row >= place.end_row) continue;
        args.log_sum_exp[row * args.log_sum_exp_stride +
                         place.head * args.log_sum_exp_head_stride] =
            softmax.most[half] * kLn2 + logf(softmax.sum[half]);
      }
    }
  });
}

template <typename K>
__global__ void DIPTYCH_CLUSTER_OF(K::kBlocks) __launch_bounds__(kProductThreads, 1)
    hopper_attention_kernel(const __grid_constant__ HopperAttentionArgs args,
                            const __grid_constant__ CUtensorMap q_map,
                            const __grid_constant__ CUtensorMap keys_map,
                            const __grid_constant__ CUtensorMap values_map) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  __shared__ AttentionBarriers barriers;
  char* const at = tiles_in_shared();
  const Shared shared = {at, at + kQBytes, at + kQBytes + kStages * kTileBytes};
  if (threadIdx.x == 0) {
    init_barrier(&barriers.q_filled, 1);
    init_barrier(&barriers.q_emptied, kMultiplying);
    for (StageBarriers<kStages>* of : {&barriers.keys, &barriers.values}) {
      for (int i = 0; i < kStages; ++i) {
        init_barrier(&of->filled[i], 1);
        init_barrier(&of->emptied[i], K::kBlocks * kMultiplying);
      }
    }
    publish_barriers();
  }
  join_cluster();
  const Worker worker = Worker::here();
  if (worker.fills()) {
    leave_registers<24>();  // 24 + 2 * 240: what 384 threads of 168 have
    if (worker.thread == 0) {
      fill_shared<K>(barriers, shared, args, &q_map, &keys_map, &values_map,
                     static_cast<int>(worker.block));
    }
  } else {
    take_registers<240>();
    attend<K>(barriers, shared, args, worker);
  }
  // No block ends while another may still send to its shared memory.
  join_cluster();
#endif
}

template <typename K>
const char* launch(const HopperAttentionArgs& args, CUstream_st* stream) {
  constexpr TileElement kElement =
      std::is_same_v<typename K::Element, __half> ? TileElement::f16 : TileElement::bf16;
  const Boxes<3> q_boxes = {args.q,
                            {kHeadDim, args.heads, args.rows},
                            {args.q_head_stride, args.q_stride},
                            {kPanelDims, 1, kTileRows}};
  const auto boxes_of = [&args](const void* at, std::int64_t stride, std::int64_t sample_stride) {
    return Boxes<4>{at,
                    {kHeadDim, args.kv_heads, args.capacity, args.samples},
                    {kHeadDim, stride, sample_stride},
                    {kPanelDims, 1, K::kLoadedKeys, 1}};
  };
  CUtensorMap q, keys, values;
  for (const char* error :
       {make_box_map(&q, kElement, q_boxes),
        make_box_map(&keys, kElement, boxes_of(args.keys, args.key_stride, args.key_sample_stride)),
        make_box_map(&values, kElement,
                     boxes_of(args.values, args.value_stride, args.value_sample_stride))}) {
    if (error != nullptr) return error;
  }
  const std::int64_t items = args.heads * items_of_head<K::kBlocks>(args);
  return launch_clusters<K::kBlocks>(hopper_attention_kernel<K>,
                                     std::min(items, clusters_at_once<K::kBlocks>()), kSharedBytes,
                                     stream, args, q, keys, values);
}

// How often every block of the device takes a place.
template <int kBlocks>
std::int64_t rounds(const HopperAttentionArgs& args) {
  return parts_of(args.heads * items_of_head<kBlocks>(args), clusters_at_once<kBlocks>());
}

// Two blocks that share what they load are 4 % faster than alone, but may leave more of the device
// idle in the last round.
bool pays_in_pairs(const HopperAttentionArgs& args) {
  return 96 * rounds<kClusterBlocks>(args) <= 100 * rounds<1>(args);
}

}  // namespace

const char* hopper_attention_unsupported(const HopperAttentionArgs& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // coordinates of tiles are 32-bit
  if (args.rows < 0) return "the number of rows is negative";
  if (args.samples < 1 || args.capacity < 1) return "there are no keys";
  if (args.rows > kMost || args.samples > kMost || args.capacity > kMost || args.heads > kMost)
    return "sizes beyond 2^30";
  if (args.kv_heads < 1 || args.heads < 1 || args.heads % args.kv_heads != 0)
    return "the heads are no multiple of the key heads";
  if (args.dtype == DType::f32) return "rows are not of bfloat16 or float16";
  for (const std::int64_t step :
       {args.q_stride, args.q_head_stride, args.key_stride, args.value_stride,
        args.key_sample_stride, args.value_sample_stride}) {
    if (!vectors_fit(args.dtype, step)) return "rows do not begin at multiples of 16 bytes";
  }
  if (!aligned(args.q) || !aligned(args.keys) || !aligned(args.values) || !aligned(args.out))
    return "rows do not begin at multiples of 16 bytes";
  return nullptr;
}

bool hopper_attention_runs_here() {
  return has_hopper_code(hopper_attention_kernel<Kind<__nv_bfloat16, false, 1>>);
}

const char* hopper_attention(const HopperAttentionArgs& args, CUstream_st* stream) {
  if (const char* reason = hopper_attention_unsupported(args)) return reason;
  if (args.rows == 0) return nullptr;
  const auto launch_for = [&](auto causal, auto blocks) {
    constexpr bool kCausal = decltype(causal)::value;
    constexpr int kBlocks = decltype(blocks)::value;
    return args.dtype == DType::bf16 ? launch<Kind<__nv_bfloat16, kCausal, kBlocks>>(args, stream)
                                     : launch<Kind<__half, kCausal, kBlocks>>(args, stream);
  };
  const auto launch_in = [&](auto blocks) {
    return args.causal ? launch_for(std::true_type{}, blocks)
                       : launch_for(std::false_type{}, blocks);
  };
  return pays_in_pairs(args) ? launch_in(std::integral_constant<int, kClusterBlocks>{})
                             : launch_in(std::integral_constant<int, 1>{});
}

}  // namespace diptych::kernels

// Attention on compute capability 9.0 as a pipeline: one warpgroup of a block fills shared memory
// with rows of q and tiles of keys and values, the others multiply them. What the kernels share
// that attend so (hopper_attention, hopper_fp8_attention); each says by a Kind what its elements
// are.
//
// The design is FlashAttention-3's (Shah et al., arXiv:2407.08608): a running softmax over tiles of
// keys (device_softmax.cuh), warpgroups of which some multiply while others take exponentials,
// products of the values of a tile next to those of the keys of the following one.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/device_pipeline.cuh"
#include "kernels/device_softmax.cuh"
#include "kernels/host_hopper.h"
#include "kernels/quantize_attention/quantize_attention.h"

namespace diptych::kernels {

inline constexpr int kAttentionDims = 128;  // of a head
inline constexpr int kGroupRows = 64;       // of q, that a warpgroup multiplies

// How a kernel is made: of elements T, with a causal mask or not, with kClusterOf blocks of a
// cluster that share what they load of keys and values, with a bias of each sample's last key or
// not. Values in e4m3 lie in blocks of keys, as quantize_attention writes them. ArgsOf: the
// kernel's arguments.
template <typename T, typename ArgsOf, bool kCausalMask, int kClusterOf, bool kLastKeyBias = false>
struct AttentionKind {
  using Element = T;
  using Args = ArgsOf;
  using Causal = std::bool_constant<kCausalMask>;
  static constexpr bool kE4m3 = std::is_same_v<T, __nv_fp8_e4m3>, kBiased = kLastKeyBias;
  static constexpr int kBlocks = kClusterOf;
  static constexpr int kGroups = kE4m3 ? 3 : 2;  // warpgroups that multiply
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  // Of a thread that multiplies, of one that fills: together what a block's threads have.
  static constexpr unsigned kRegisters = kE4m3 ? 160 : 240, kFillRegisters = kE4m3 ? 32 : 24;
  static constexpr int kTileRows = kGroups * kGroupRows;  // of a block
  static constexpr int kTileKeys = kE4m3 ? 96 : 192;
  static constexpr int kStages = kE4m3 ? 4 : 2;   // of keys, and of values
  static_assert((kStages & (kStages - 1)) == 0);  // a count of tiles may overflow
  // Tiles lie in panels, whose rows are 128 bytes.
  static constexpr int kBytes = static_cast<int>(sizeof(T));
  static constexpr int kPanelDims = kSwizzledBytes / kBytes, kPanels = kAttentionDims / kPanelDims;
  static constexpr int kQPanelBytes = kTileRows * kSwizzledBytes, kQBytes = kPanels * kQPanelBytes;
  static constexpr int kPanelBytes = kTileKeys * kSwizzledBytes;
  static constexpr int kTileBytes = kPanels * kPanelBytes;
  // Tensor cores add up products of e4m3 in about 14 bits (DeepSeek-V3, arXiv:2412.19437, 3.3.2):
  // with values that have a mean, sums over 32760 keys came out 30 % too small. So they begin anew
  // every few tiles, and their totals are in shared memory, which is what that costs
  // (docs/speed.md, "Attention alone"). Those of 16 bits never do.
  static constexpr int kSumTiles = kE4m3 ? 16 : 1 << 30;
  // Whether a group awaits its products with the values before its warps check whether they must
  // rescale them. Otherwise a warp that must rescale waits alone. PTX does not promise that this
  // works; ptxas compiles it to a wait of each warp. Waiting before the check costs 2.5 % of the
  // time in 16 bits, where weights must grow by 2^64 for a rescue (in float16 by 2^15), and saves
  // 1.3 % in e4m3.
  static constexpr bool kAwaitsEarly = kE4m3;
  static constexpr int kTotalBytes = kE4m3 ? kTileRows * kAttentionDims * 4 : 0;
  static constexpr int kSharedBytes =
      kQBytes + 2 * kStages * kTileBytes + kTotalBytes + kTileAlignment;
  static constexpr int kDepth = 32 / kBytes;  // of one product
  // Of a thread: a warpgroup has 64 x kTileKeys scores and 64 x kAttentionDims outputs.
  static constexpr int kScores = kTileKeys / 2, kOutputs = kAttentionDims / 2;
  static constexpr int kWords = kScores * kBytes / 4;      // weights, packed
  static constexpr int kLoadedKeys = kTileKeys / kBlocks;  // of a tile, by one block for all
  static_assert(kLoadedKeys % kSwizzleRows == 0);
};

template <int kStages>
struct AttentionBarriers {
  std::uint64_t q_filled, q_emptied;
  StageBarriers<kStages> keys, values;
};

struct AttentionTiles {
  char *q, *keys, *values;  // in shared memory
  float4* totals;           // of outputs, four of each thread, then the next four
};

// Rows of q that a cluster takes, and what they are multiplied with.
struct AttentionPlace {
  int sample, head;
  int first_row;  // of q, of the cluster's
  int end_row;    // of the sample's rows of q
  int keys;       // that count
  int seen;       // by the cluster's first row; its row i sees i more where there is a mask
  int tiles;      // of keys
};

// The places of a head follow each other: what runs at a time then shares keys and values in L2.
// Those of a sample follow each other, too: without a mask they are equally much work, so that
// clusters that take them in turn end together.
template <typename K>
__device__ __forceinline__ AttentionPlace place_of(const typename K::Args& args,
                                                   std::int64_t item) {
  constexpr int kClusterRows = K::kBlocks * K::kTileRows;
  AttentionPlace place{};
  const auto heads = static_cast<int>(args.heads);
  auto left = static_cast<int>(item);
  for (;; ++place.sample) {
    const int start = args.query_starts[place.sample];
    place.end_row = args.query_starts[place.sample + 1];
    const int of_head = (place.end_row - start + kClusterRows - 1) / kClusterRows;
    if (left < of_head * heads) {
      place.head = left / of_head;
      place.first_row = start + left % of_head * kClusterRows;
      break;
    }
    left -= of_head * heads;
  }
  place.keys = min(max(args.key_counts[place.sample], 1), static_cast<int>(args.capacity));
  place.seen = place.keys;
  int most = place.keys;
  if constexpr (K::Causal::value) {
    place.seen = place.keys - (place.end_row - place.first_row) + 1;
    most = min(most, place.seen + kClusterRows - 1);
  }
  place.tiles = (most + K::kTileKeys - 1) / K::kTileKeys;
  return place;
}

// Calls body(place) for each of the `places` that this cluster takes; both sides take the same in
// the same order.
template <typename K, typename Body>
__device__ __forceinline__ void for_places(const typename K::Args& args, std::int64_t places,
                                           const Body& body) {
  for (std::int64_t item = blockIdx.x / K::kBlocks; item < places; item += gridDim.x / K::kBlocks) {
    body(place_of<K>(args, item));
  }
}

// What the accelerator reads. values: of 16-bit elements.
struct AttentionMaps {
  CUtensorMap q, keys, values;
};

// By one thread of a block. Each block loads its own rows of q, and its part of each tile of keys
// and values for all of the cluster.
template <typename K>
__device__ __forceinline__ void fill_shared(AttentionBarriers<K::kStages>& barriers,
                                            const AttentionTiles& shared,
                                            const typename K::Args& args, std::int64_t places,
                                            const AttentionMaps& maps, int block) {
  using Stages = StageBarriers<K::kStages>;
  Ring<K::kStages> keys, values;
  unsigned q_parity = 1;
  const int group = static_cast<int>(args.heads / args.kv_heads);
  for_places<K>(args, places, [&](const AttentionPlace& place) {
    await_phase(&barriers.q_emptied, q_parity);
    q_parity ^= 1;
    expect_bytes(&barriers.q_filled, K::kQBytes);
#pragma unroll
    for (int panel = 0; panel < K::kPanels; ++panel) {
      load_box(shared.q + panel * K::kQPanelBytes, &maps.q, &barriers.q_filled,
               panel * K::kPanelDims, place.head, place.first_row + block * K::kTileRows);
    }
    const int kv_head = place.head / group;
    // Returns the stage's barrier.
    const auto begin_stage = [](Ring<K::kStages>& ring, Stages& of) {
      await_phase(&of.emptied[ring.stage], ring.parity ^ 1);
      expect_bytes(&of.filled[ring.stage], K::kTileBytes);
      return &of.filled[ring.stage];
    };
    const auto load = [&](Ring<K::kStages>& ring, Stages& of, char* tiles, const CUtensorMap* map,
                          int tile) {
      std::uint64_t* const filled = begin_stage(ring, of);
      char* const at = tiles + ring.stage * K::kTileBytes + block * K::kLoadedKeys * kSwizzledBytes;
      const int first_key = tile * K::kTileKeys + block * K::kLoadedKeys;
#pragma unroll
      for (int panel = 0; panel < K::kPanels; ++panel) {
        char* const to = at + panel * K::kPanelBytes;
        if constexpr (K::kBlocks == 1) {
          load_box(to, map, filled, panel * K::kPanelDims, kv_head, first_key, place.sample);
        } else {
          load_box_for(kAllOfCluster, to, map, filled, panel * K::kPanelDims, kv_head, first_key,
                       place.sample);
        }
      }
      ring.next();
    };
    const auto load_values = [&](int tile) {
      if constexpr (K::kE4m3) {
        constexpr int kPart = K::kTileBytes / K::kBlocks;  // bytes, by this block for all
        std::uint64_t* const filled = begin_stage(values, barriers.values);
        const std::int64_t head = place.sample * args.kv_heads + kv_head;
        const char* const from = static_cast<const char*>(args.values) +
                                 head * args.value_blocks * kValueBlockBytes +
                                 static_cast<std::int64_t>(tile) * K::kTileBytes + block * kPart;
        static_assert(K::kBlocks == kClusterBlocks);
        load_bytes_for(kAllOfCluster, shared.values + values.stage * K::kTileBytes + block * kPart,
                       from, kPart, filled);
        values.next();
      } else {
        load(values, barriers.values, shared.values, &maps.values, tile);
      }
    };
    for (int tile = 0; tile <= place.tiles; ++tile) {  // values are needed after the next keys
      if (tile < place.tiles) load(keys, barriers.keys, shared.keys, &maps.keys, tile);
      if (tile > 0) load_values(tile - 1);
    }
  });
}

// Two or four elements of T in a word.
template <typename T>
__device__ __forceinline__ unsigned pack(float first, float second) {
  typename PairOf<T>::Type pair;
  round_pair(first, second, &pair);
  return *reinterpret_cast<unsigned*>(&pair);
}
__device__ __forceinline__ unsigned pack_e4m3(float a, float b, float c, float d) {
  const unsigned low = __nv_cvt_float2_to_fp8x2(float2{a, b}, __NV_SATFINITE, __NV_E4M3);
  const unsigned high = __nv_cvt_float2_to_fp8x2(float2{c, d}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

// The weights of a tile as the operand of the product with its values. Of e4m3 a word takes 4 keys:
// of each 16 keys those that the thread has, in its order, which is that of the values.
template <typename K>
__device__ __forceinline__ void pack_weights(unsigned (&words)[K::kWords],
                                             const float (&weights)[K::kScores]) {
  if constexpr (K::kE4m3) {
#pragma unroll
    for (int i = 0; i < K::kWords / 2; ++i) {
      const float* const of = weights + 8 * i;
      words[2 * i] = pack_e4m3(of[0], of[1], of[4], of[5]);
      words[2 * i + 1] = pack_e4m3(of[2], of[3], of[6], of[7]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < K::kWords; ++i)
      words[i] = pack<typename K::Element>(weights[2 * i], weights[2 * i + 1]);
  }
}

// Among four neighbouring lanes: lane i's words[p] becomes lane p's words[i].
__device__ __forceinline__ void transpose_quad(unsigned (&words)[4], int lane) {
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
template <typename K>
__device__ __forceinline__ void write_rows(const typename K::Args& args,
                                           const AttentionPlace& place,
                                           const float (&outputs)[K::kOutputs],
                                           const float (&by)[2], int first_row, int lane) {
  using T = typename K::Element;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half;
    T* const to = static_cast<T*>(args.out) +
                  (static_cast<std::int64_t>(row) * args.heads + place.head) * kAttentionDims;
    const auto output = [&](int eight, int i) {
      return outputs[4 * eight + 2 * half + i] * by[half];
    };
    constexpr int kEach = 64 / K::kBytes;  // elements of four lanes
#pragma unroll
    for (int i = 0; i < kAttentionDims / kEach; ++i) {
      unsigned words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (K::kE4m3) {
          const int eight = 8 * i + 2 * j;
          words[j] = pack_e4m3(output(eight, 0), output(eight, 1), output(eight + 1, 0),
                               output(eight + 1, 1));
        } else {
          words[j] = pack<T>(output(4 * i + j, 0), output(4 * i + j, 1));
        }
      }
      transpose_quad(words, lane);
      uint4 part = {words[0], words[1], words[2], words[3]};
      if constexpr (K::kE4m3) {  // the first 8 columns are the low halves
        part = {__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410),
                __byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632)};
      }
      if (row < place.end_row) store_words(to + kEach * i + 16 / K::kBytes * (lane % 4), part);
    }
  }
}

// By a warpgroup, for 64 rows of each place. FlashAttention-3 makes its warpgroups take turns by
// barriers; here they find turns by themselves, and barriers cost 5 % on an H200.
template <typename K>
__device__ __forceinline__ void attend(AttentionBarriers<K::kStages>& barriers,
                                       const AttentionTiles& shared, const typename K::Args& args,
                                       std::int64_t places, const Worker& worker) {
  using T = typename K::Element;
  constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
  constexpr int kTileKeys = K::kTileKeys;
  using Scores = float[K::kScores];
  using Outputs = float[K::kOutputs];
  using Words = unsigned[K::kWords];
  const int group = worker.group, thread = worker.thread;
  const int lane = computed_once(thread % kWarp);
  float scale = args.scale * kLog2E;
  if constexpr (K::kE4m3) scale *= *args.q_scale * *args.key_scale;
  // Tiles of values multiplied so far, over all places: gives stage and parity of keys and values.
  unsigned taken = 0;
  unsigned q_parity = 0;
  const std::uint64_t q = tile_descriptor(shared.q + group * kGroupRows * kSwizzledBytes);
  const std::uint64_t first_keys = tile_descriptor(shared.keys);
  const std::uint64_t first_values = K::kE4m3 ? half_tile_descriptor(shared.values)
                                              : tile_descriptor(shared.values, K::kPanelBytes);
  const auto stage_of = [](unsigned count) { return count % K::kStages; };
  const auto parity_of = [](unsigned count) { return count / K::kStages % 2; };
  const auto at_stage = [](std::uint64_t first, unsigned stage) {
    return first + static_cast<std::uint64_t>(stage * (K::kTileBytes >> 4));
  };
  // Barriers by their offsets: the compiler would compute each address in each step.
  const unsigned barriers_at = computed_once(shared_address(&barriers));
  const auto offset_of = [&barriers](const std::uint64_t& barrier) {
    return static_cast<unsigned>(reinterpret_cast<const char*>(&barrier) -
                                 reinterpret_cast<const char*>(&barriers));
  };
  // Tells block i of the cluster by lane i that a stage may be filled again. Each warp for itself:
  // it may read keys alone (score_again).
  const auto release = [&](const std::uint64_t& emptied) {
    if (lane >= K::kBlocks) return;
    const unsigned barrier = barriers_at + offset_of(emptied);
    if constexpr (K::kBlocks == 1) {
      arrive_here(barrier);
    } else {
      arrive_at(barrier, static_cast<unsigned>(lane));
    }
  };
  const auto multiply_keys = [&](Scores& scores, unsigned count) {  // count: of tiles before it
    const unsigned stage = stage_of(count);
    await_phase(barriers_at + offset_of(barriers.keys.filled[stage]), parity_of(count));
    const std::uint64_t at = at_stage(first_keys, stage);
    begin_products();
#pragma unroll
    for (int panel = 0; panel < K::kPanels; ++panel) {
#pragma unroll
      for (int k = 0; k < K::kPanelDims / K::kDepth; ++k) {
        multiply_tile<T>(scores, q + panel * (K::kQPanelBytes >> 4) + k * kDescriptorStep,
                         at + panel * (K::kPanelBytes >> 4) + k * kDescriptorStep,
                         panel > 0 || k > 0);
      }
    }
    end_of_products();
  };
  const auto multiply_values = [&](Outputs& outputs, const Words& words) {
    constexpr std::uint64_t kStep = (K::kE4m3 ? kValueBlockBytes : K::kDepth * kSwizzledBytes) >> 4;
    const unsigned stage = stage_of(taken);
    await_phase(barriers_at + offset_of(barriers.values.filled[stage]), parity_of(taken));
    const std::uint64_t at = at_stage(first_values, stage);
    begin_products();
#pragma unroll
    for (int k = 0; k < kTileKeys / K::kDepth; ++k) {
      multiply_registers<T, !K::kE4m3>(
          outputs, *reinterpret_cast<const unsigned(*)[4]>(&words[4 * k]), at + k * kStep, true);
    }
    end_of_products();
  };
  const auto clear = [](Outputs& outputs) {
#pragma unroll
    for (float& output : outputs) output = 0;
  };
  // The totals of this thread's outputs, four at a time.
  const unsigned totals = shared_address(shared.totals + group * kWarpgroup + thread);
  const auto total_at = [totals](int four) {
    return totals + static_cast<unsigned>(four * K::kGroups * kWarpgroup * sizeof(float4));
  };
  const auto add_to_totals = [&](const Outputs& outputs, bool is_first) {
#pragma unroll
    for (int i = 0; i < K::kOutputs; i += 4) {
      float4 four = {outputs[i], outputs[i + 1], outputs[i + 2], outputs[i + 3]};
      if (!is_first) {
        const float4 before = load_shared(total_at(i / 4));
        four = {before.x + four.x, before.y + four.y, before.z + four.z, before.w + four.w};
      }
      store_shared(total_at(i / 4), four);
    }
  };
  const auto multiply_totals = [&](const float(&factor)[2]) {
#pragma unroll 1
    for (int i = 0; i < K::kOutputs / 4; ++i) {
      const float4 four = load_shared(total_at(i));
      store_shared(total_at(i), {four.x * factor[0], four.y * factor[0], four.z * factor[1],
                                 four.w * factor[1]});
    }
  };
  // Adds the bias of key `last` of these to scores, which are not scaled yet.
  const auto add_bias = [&](auto& scores, float bias, int last) {
    if constexpr (K::kBiased) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(scores) / sizeof(float)); ++i) {
        if (i / 4 * 8 + 2 * (lane % 4) + i % 2 == last) scores[i] += bias;
      }
    }
  };
  const unsigned q_of_warp =
      shared_address(shared.q) +
      static_cast<unsigned>((group * kGroupRows + thread / kWarp * 16) * kSwizzledBytes);

  for_places<K>(args, places, [&](const AttentionPlace& place) {
    const int within = static_cast<int>(worker.block) * K::kTileRows + group * kGroupRows +
                       thread / kWarp * 16 + lane / 4;  // the thread's first row in the cluster's
    const int first_row = place.first_row + within;
    // How many keys its rows see.
    int low = place.keys, high = place.keys;
    if constexpr (K::Causal::value) {
      low = min(place.seen + within, place.keys);
      high = min(place.seen + within + 8, place.keys);
    }
    float bias = 0;
    if constexpr (K::kBiased) bias = args.last_key_bias[place.sample] / args.scale;
    Scores scores;
    Outputs outputs;
    Words words;
    Softmax softmax;

    await_phase(&barriers.q_filled, q_parity);
    q_parity ^= 1;
    multiply_keys(scores, taken);
    await_products<0>();
    hold(scores);
    add_bias(scores, bias, place.keys - 1);
    hide(scores, low, high, lane);
    release(barriers.keys.emptied[stage_of(taken)]);
    weigh_first<T>(scores, softmax, scale);
    pack_weights<K>(words, scores);
    clear(outputs);

    int tile = 1;
    const auto step = [&](auto masked) {
      const int first_key = tile * kTileKeys;
      const unsigned key_stage = stage_of(taken + 1);
      multiply_keys(scores, taken + 1);
      multiply_values(outputs, words);
      await_products<1>();
      hold(scores);
      if constexpr (decltype(masked)::value) {
        add_bias(scores, bias, place.keys - 1 - first_key);
        hide(scores, low - first_key, high - first_key, lane);
      }
      const auto score_again = [&](auto& sums, int eight) {
        const int at =
            static_cast<int>(key_stage) * K::kTileBytes + eight * kSwizzleRows * kSwizzledBytes;
        score_keys<T, K::kPanels>(sums, q_of_warp, K::kQPanelBytes,
                                  shared_address(shared.keys) + static_cast<unsigned>(at),
                                  K::kPanelBytes, static_cast<unsigned>(lane));
        if constexpr (decltype(masked)::value) {
          const int first = first_key + 8 * eight;
          add_bias(sums, bias, place.keys - 1 - first);
          hide(sums, low - first, high - first, lane);
        }
      };
      const auto await_sums = [&] {
        await_products<0>();
        hold(outputs);
      };
      const auto await_early = [&] {
        if constexpr (K::kAwaitsEarly) await_sums();
      };
      const auto await_late = [&] {
        if constexpr (!K::kAwaitsEarly) await_sums();
      };
      const auto rescale = [&](const float(&factor)[2]) {
        await_late();
#pragma unroll
        for (int i = 0; i < K::kOutputs; ++i) outputs[i] *= factor[i / 2 % 2];
        if constexpr (K::kE4m3) {
          if (tile > K::kSumTiles) multiply_totals(factor);
        }
      };
      weigh_next<T>(scores, softmax, scale, await_early, score_again, rescale);
      release(barriers.keys.emptied[key_stage]);
      await_late();
      release(barriers.values.emptied[stage_of(taken)]);
      pack_weights<K>(words, scores);
      ++taken;
    };
    // Tiles that every row of the cluster sees whole need no mask; one with a bias is not whole.
    const int whole = (min(place.seen, place.keys) - (K::kBiased ? 1 : 0)) / kTileKeys;
    // The branch for new sums stands outside the loop over tiles: inside it, and with products that
    // either add or do not, it took 4 % of the time in e4m3.
    for (int last = K::kSumTiles;; last += K::kSumTiles) {
      for (const int end = computed_once(min(whole, last + 1)); tile < end; ++tile)
        step(std::false_type{});
      for (const int end = min(place.tiles, last + 1); tile < end; ++tile) step(std::true_type{});
      if constexpr (!K::kE4m3) break;
      if (tile <= last) break;
      add_to_totals(outputs, last == K::kSumTiles);
      clear(outputs);
    }
    if (lane == 0) arrive_here(barriers_at + offset_of(barriers.q_emptied));

    multiply_values(outputs, words);
    await_products<0>();
    hold(outputs);
    release(barriers.values.emptied[stage_of(taken)]);
    ++taken;
    if constexpr (K::kE4m3) {
      if (place.tiles > K::kSumTiles) {
#pragma unroll
        for (int i = 0; i < K::kOutputs; i += 4) {
          const float4 total = load_shared(total_at(i / 4));
          outputs[i] += total.x;
          outputs[i + 1] += total.y;
          outputs[i + 2] += total.z;
          outputs[i + 3] += total.w;
        }
      }
    }
    float by[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float& sum = softmax.sum[row];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      by[row] = 1 / sum;
    }
    write_rows<K>(args, place, outputs, by, first_row, lane);
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
__global__ void DIPTYCH_CLUSTER_OF(K::kBlocks) __launch_bounds__(K::kThreads, 1)
    attention_kernel(const __grid_constant__ typename K::Args args, std::int64_t places,
                     const __grid_constant__ AttentionMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // a build is for several architectures, this body for one
  __shared__ AttentionBarriers<K::kStages> barriers;
  char* const at = tiles_in_shared();
  char* const values = at + K::kQBytes + K::kStages * K::kTileBytes;
  const AttentionTiles shared = {at, at + K::kQBytes, values,
                                 reinterpret_cast<float4*>(values + K::kStages * K::kTileBytes)};
  if (threadIdx.x == 0) {
    init_barrier(&barriers.q_filled, 1);
    constexpr unsigned kWarps = K::kGroups * (kWarpgroup / kWarp);  // that multiply
    init_barrier(&barriers.q_emptied, kWarps);
    for (int i = 0; i < K::kStages; ++i) {
      init_barrier(&barriers.keys.filled[i], 1);
      init_barrier(&barriers.keys.emptied[i], K::kBlocks * kWarps);
      init_barrier(&barriers.values.filled[i], 1);
      init_barrier(&barriers.values.emptied[i], K::kBlocks * kWarps);
    }
    publish_barriers();
  }
  join_cluster();
  const Worker worker = Worker::here();
  if (worker.group == K::kGroups) {
    leave_registers<K::kFillRegisters>();
    if (worker.thread == 0)
      fill_shared<K>(barriers, shared, args, places, maps, static_cast<int>(worker.block));
  } else {
    take_registers<K::kRegisters>();
    attend<K>(barriers, shared, args, places, worker);
  }
  // No block ends while another may still send to its shared memory.
  join_cluster();
#endif
}

// Why none of the kernels can take such numbers of rows, keys and heads, or nullptr.
template <typename Args>
const char* attention_sizes_unsupported(const Args& args) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;  // coordinates of tiles are 32-bit
  if (args.rows < 0) return "the number of rows is negative";
  if (args.samples < 1 || args.capacity < 1) return "there are no keys";
  if (args.rows > kMost || args.samples > kMost || args.capacity > kMost || args.heads > kMost)
    return "sizes beyond 2^30";
  if (args.kv_heads < 1 || args.heads < 1 || args.heads % args.kv_heads != 0)
    return "the heads are no multiple of the key heads";
  return nullptr;
}

template <typename K>
const char* launch_attention(const typename K::Args& args, std::int64_t places,
                             const AttentionMaps& maps, CUstream_st* stream) {
  const std::int64_t clusters = std::min(places, clusters_at_once<K::kBlocks>());
  return launch_clusters<K::kBlocks, K::kThreads>(attention_kernel<K>, clusters, K::kSharedBytes,
                                                  stream, args, places, maps);
}

}  // namespace diptych::kernels

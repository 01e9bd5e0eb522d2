// Attention of many rows over many keys in e4m3 on compute capability 9.0, of what
// quantize_attention makes: grouped-query, rows of several samples, every row over the keys of its
// sample that count.
//   out[r][h] = sum_j softmax_j(scale * q_scale * key_scale * q[r][h] . k[s][j][h / group])
//               * v[s][j][h / group],   j < key_counts[s], s the sample of row r
// Sums are float32; on the device those of up to 1536 keys are of fewer bits (device_attention.cuh,
// kSumTiles). A power of two brings weights near the largest e4m3 number, then they are rounded to
// e4m3 and meet v. The result is rounded to e4m3, too, and has v's scale. A row's bits do not
// depend on what other rows and samples there are.
//
// The design is hopper_attention's (device_attention.cuh, device_softmax.cuh), with three
// warpgroups that multiply.
//
// Bound: exponentials, rows * keys * heads of them, arithmetic, 4 * rows * keys * heads * head_dim
// operations on the tensor cores, and what these read of shared memory: 1040 TFLOP/s with the
// quantising, of 49290 keys with heads 16/2 on an H200 (docs/speed.md, "Attention alone").
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct HopperFp8AttentionArgs {
  const void* q = nullptr;     // e4m3 [rows, heads, 128], packed; so is what follows
  const void* keys = nullptr;  // [samples, capacity, kv_heads, 128]
  // [samples, kv_heads, value_blocks] blocks, in quantize_attention's layout of values; zeros where
  // they do not count
  const void* values = nullptr;
  const float* q_scale = nullptr;  // one number each
  const float* key_scale = nullptr;
  const std::int32_t* key_counts = nullptr;    // [samples], 1 to capacity; else taken as that
  const std::int32_t* query_starts = nullptr;  // [samples + 1], ascending: sample s has the rows
                                               // from [s] to before [s + 1]
  void* out = nullptr;                         // e4m3 [rows, heads, 128]
  // [rows, heads]: log of the sum of exp(logits), of weights before they are rounded; null: not
  // wanted
  float* log_sum_exp = nullptr;
  std::int64_t log_sum_exp_stride = 0, log_sum_exp_head_stride = 0;
  std::int64_t rows = 0, samples = 0, heads = 0, kv_heads = 0, capacity = 0;
  std::int64_t value_blocks = 0;      // hopper_fp8_value_blocks(capacity) or more
  std::int64_t query_tile_pairs = 0;  // sum over the samples of hopper_fp8_query_tile_pairs()
  float scale = 0;                    // above 0
};

// Rows of a sample that a cluster of two blocks takes at a time.
inline constexpr std::int64_t kHopperFp8QueryTilePair = 2 * 192;
constexpr std::int64_t hopper_fp8_query_tile_pairs(std::int64_t queries) {
  return (queries + kHopperFp8QueryTilePair - 1) / kHopperFp8QueryTilePair;
}
// Blocks of values that are read of a sample's `capacity` keys: whole tiles of them.
constexpr std::int64_t hopper_fp8_value_blocks(std::int64_t capacity) {
  constexpr std::int64_t kTileKeys = 96, kTileBlocks = 3;
  return (capacity + kTileKeys - 1) / kTileKeys * kTileBlocks;
}

const char* hopper_fp8_attention_unsupported(const HopperFp8AttentionArgs& args);
// The build has code for the current device where it has hopper_attention's.
const char* hopper_fp8_attention(const HopperFp8AttentionArgs& args, CUstream_st* stream);
void hopper_fp8_attention_ref(const HopperFp8AttentionArgs& args);

}  // namespace diptych::kernels

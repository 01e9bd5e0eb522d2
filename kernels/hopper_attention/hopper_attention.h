// Attention of many rows over many keys on compute capability 9.0: grouped-query, rows of several
// samples, every row over the keys of its sample that count.
//   out[r][h] = sum_j softmax_j(scale * q[r][h] . k[s][j][h / group] + bias[s][j])
//               * v[s][j][h / group],   bias[s][j]: last_key_bias[s] of the last key, else 0,
//   j < key_counts[s], s the sample of row r; causal: row i of n sees j < key_counts[s] - n + 1 + i
// Sums are float32; weights are rounded to the dtype before they meet v. A row's bits do not depend
// on what other rows and samples there are.
//
// The design is FlashAttention-3's but for the softmax (device_attention.cuh, device_softmax.cuh).
//
// Bound: arithmetic, 4 * rows * keys * heads * head_dim operations on the tensor cores: 743 TFLOP/s
// of 49290 keys with heads 16/2 on an H200 whose large products reach 790 (docs/speed.md,
// "Attention alone").
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct HopperAttentionArgs {
  const void* q = nullptr;       // [rows, heads, kHopperHeadDim]
  const void* keys = nullptr;    // [samples, capacity, kv_heads, kHopperHeadDim], heads packed
  const void* values = nullptr;  // likewise; finite also where they do not count
  // [samples], 1 to capacity; less or more is taken as that. Causal: no less than the sample's
  // rows.
  const std::int32_t* key_counts = nullptr;
  const std::int32_t* query_starts = nullptr;  // [samples + 1], ascending: sample s has the rows
                                               // from [s] to before [s + 1]
  void* out = nullptr;                         // [rows, heads, kHopperHeadDim], packed
  const float* last_key_bias = nullptr;  // [samples], of their last key that counts; null: zeros;
                                         // not with `causal`
  float* log_sum_exp = nullptr;  // [rows, heads]: log of the sum of exp(logits); null: not wanted
  std::int64_t rows = 0, samples = 0, heads = 0, kv_heads = 0, capacity = 0;
  // Sums over the samples of hopper_query_tiles() and of hopper_query_tile_pairs().
  std::int64_t query_tiles = 0, query_tile_pairs = 0;
  std::int64_t q_stride = 0, q_head_stride = 0;
  std::int64_t key_stride = 0, value_stride = 0;                // between rows
  std::int64_t key_sample_stride = 0, value_sample_stride = 0;  // above 0, of one sample, too
  std::int64_t log_sum_exp_stride = 0, log_sum_exp_head_stride = 0;
  float scale = 0;  // above 0
  bool causal = false;
  DType dtype = DType::bf16;
};

inline constexpr std::int64_t kHopperHeadDim = 128;
// Rows of a sample that a block takes at a time, or a cluster of two takes two of.
inline constexpr std::int64_t kHopperQueryTile = 128;
constexpr std::int64_t hopper_query_tiles(std::int64_t queries) {
  return (queries + kHopperQueryTile - 1) / kHopperQueryTile;
}
constexpr std::int64_t hopper_query_tile_pairs(std::int64_t queries) {
  return (hopper_query_tiles(queries) + 1) / 2;
}

const char* hopper_attention_unsupported(const HopperAttentionArgs& args);
// Whether the build has this kernel's code for the current device.
bool hopper_attention_runs_here();
const char* hopper_attention(const HopperAttentionArgs& args, CUstream_st* stream);
void hopper_attention_ref(const HopperAttentionArgs& args);

}  // namespace diptych::kernels

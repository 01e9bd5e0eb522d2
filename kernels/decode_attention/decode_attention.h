// Attention of a few rows over the keys of a cache, as one new token or the markers of a picture
// ask: grouped-query, rows of several samples, every row over all keys of its sample or, causal,
// but those of the sample's later rows. The numbers of keys are read on the device, so that a
// captured graph serves a growing cache. Two kernels: every (key head, part of the keys, few
// queries) is one block that keeps a running softmax (Milakov and Gimelshein, arXiv:1805.02867),
// then one block a head and row joins the parts, as FlashDecoding does (Dao et al.,
// https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
//   out[r][h] = sum_j softmax_j(scale * q[r][h] . k[s][j][h / group]) * v[s][j][h / group],
//   j < key_count[s], s the sample of row r; causal: j < key_count[s] - the rows of s behind r
// in float32, rounded at the end; several rows in 16 bits with heads of 128 go through tensor
// cores, with their weights rounded to the dtype. A row's bits do not depend on what other rows
// there are, but for that, and for how many rows the largest sample has.
//
// Bound: memory. Reads 2 * key_count * kv_heads * head_dim elements of each sample; its rows read
// them at the same time, all but the first from the level 2 cache.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct DecodeAttentionArgs {
  const void* q = nullptr;                  // [rows, heads, head_dim], heads packed
  const void* keys = nullptr;               // [samples, capacity, kv_heads, head_dim], heads
                                            // packed
  const void* values = nullptr;             // likewise
  const std::int32_t* key_count = nullptr;  // [samples], 1 to capacity; more is taken as capacity
  const std::int32_t* query_starts = nullptr;  // [samples + 1], ascending: sample s has the rows
                                               // from [s] to before [s + 1]; null: one sample
  void* out = nullptr;                         // [rows, heads, head_dim], packed
  float* parts = nullptr;                      // scratch, decode_attention_scratch() floats
  std::int64_t rows = 0, samples = 0, heads = 0, kv_heads = 0, head_dim = 0, capacity = 0;
  std::int64_t most_rows = 0;      // that a sample has; 0: it may have all
  std::int64_t q_stride = 0;       // of a row of q
  std::int64_t key_stride = 0;     // of a row of keys and values
  std::int64_t sample_stride = 0;  // of a sample of keys and values
  float scale = 0;
  bool causal = false;  // key_count is then at least the rows of its sample
  DType dtype = DType::f32;
};

inline constexpr int kDecodeParts = 32;  // of the keys
inline constexpr int kDecodeExtra =
    2;  // floats of a part beside its sums: largest logit, sum of weights
// Floats that `parts` must hold.
inline std::int64_t decode_attention_scratch(const DecodeAttentionArgs& args) {
  return args.rows * args.heads * kDecodeParts * (args.head_dim + kDecodeExtra);
}
const char* decode_attention_unsupported(const DecodeAttentionArgs& args);
const char* decode_attention(const DecodeAttentionArgs& args, CUstream_st* stream);
// `parts` is not used.
void decode_attention_ref(const DecodeAttentionArgs& args);

}  // namespace diptych::kernels

// What qk_norm_rope and decode_attention compute one after the other, in one kernel, for the few
// newest rows of one text: q and k of qkv's rows are normed and rotated, k and v written into their
// slots of the cache, and each row attends over all keys, or, if causal, over all keys except those
// of later rows.
//   out[r][h] = sum_j softmax_j(scale * q[r][h] . k[j][h / group]) * v[j][h / group]
// A step of a text starts no other kernel between the products with qkv_proj and o_proj.
//
// For compute capability 9.0 alone. A cluster of 16 blocks serves one key head. Each block norms
// all queries that share it, and takes 4 neighbouring keys of every 64 (FlashDecoding's split of
// the keys: Dao et al., https://crfm.stanford.edu/2023/10/12/flashdecoding.html). It keeps a
// running softmax (Milakov and Gimelshein, arXiv:1805.02867), and sends what it has summed to the
// shared memory of the block that joins the query's parts. Products are the tensor cores', with
// weights rounded to the dtype, sums in float32. A row's bits depend on the keys that it sees, not
// on the other rows.
//
// Bound: latency; from some thousand keys on memory. Reads 2 * key_count * kv_heads *
// head_dim elements. Reads the norms' weights before kernels that are still running have ended:
// none of the last few launches may write them.
#pragma once

#include "kernels/qk_norm_rope/qk_norm_rope.h"

namespace diptych::kernels {

inline constexpr std::int64_t kRopeAttentionHeadDim = 128;
inline constexpr std::int64_t kRopeAttentionQueries = 16;  // rows times the heads of a key head

struct RopeAttentionArgs {
  // Of one sample with at most 2^31 elements in the cache, and all rows in the first set, as a
  // range from 0. Row r of n has the slot key_count - n + r. Everything begins at multiples of 16
  // bytes. `q` is not used.
  QkNormRopeArgs rope;
  const std::int32_t* key_count = nullptr;  // [1], rows to capacity, with the new ones
  void* out = nullptr;                      // [rows, heads, head_dim], packed
  float scale = 0;
  bool causal = false;
};

// The kernel traps if a slot or the number of keys is anything else (a launch failure at the next
// synchronisation).
const char* rope_attention_unsupported(const RopeAttentionArgs& args);
// Whether the current device has code for it, and room for the cluster.
bool rope_attention_runs_here();
const char* rope_attention(const RopeAttentionArgs& args, CUstream_st* stream);
// Throws std::out_of_range for such a slot or number of keys. Weights are not rounded.
void rope_attention_ref(const RopeAttentionArgs& args);

}  // namespace diptych::kernels

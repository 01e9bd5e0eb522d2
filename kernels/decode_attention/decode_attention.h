// Attention of one new token over the keys of its cache: grouped-query, the number of keys read on
// the device, so that a captured graph serves a growing cache. Two kernels: every (group of heads,
// part of the keys) is one block that keeps a running softmax (Milakov and Gimelshein,
// arXiv:1805.02867), then one block a head joins the parts, as FlashDecoding does (Dao et al.,
// https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
//   out[h] = sum_j softmax_j(scale * q[h] . k[j][h / group]) * v[j][h / group], j < *key_count
// in float32, rounded at the end.
//
// Bound: memory. Reads 2 * key_count * kv_heads * head_dim elements.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct DecodeAttentionArgs {
  const void* q = nullptr;                  // [heads, head_dim], packed
  const void* keys = nullptr;               // [capacity, kv_heads, head_dim], packed
  const void* values = nullptr;             // likewise
  const std::int32_t* key_count = nullptr;  // one number, 1 to capacity; more is taken as capacity
  void* out = nullptr;                      // [heads, head_dim], packed
  float* parts = nullptr;                   // scratch, decode_attention_scratch() floats
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, capacity = 0;
  float scale = 0;
  DType dtype = DType::f32;
};

// Floats that `parts` must hold.
std::int64_t decode_attention_scratch(const DecodeAttentionArgs& args);
const char* decode_attention_unsupported(const DecodeAttentionArgs& args);
const char* decode_attention(const DecodeAttentionArgs& args, CUstream_st* stream);
// `parts` is not used.
void decode_attention_ref(const DecodeAttentionArgs& args);

}  // namespace diptych::kernels

// Per-head RMSNorm of q and k, half-split rotation of both, and k and v written into their slots of
// the cache. With w the norm's weight, n = x / sqrt(mean(x^2) + eps), (c, s) the angle's cosine and
// sine and T(...) rounding to the dtype:
//   every step:  a = T(T(n) * w);  low' = T(T(a_low * c) - T(a_high * s)), high' = T(T(a_high * c)
//   + T(a_low * s)) at the end:  a = n * w;        low' = T(a_low * c - a_high * s),       high' =
//   T(a_high * c + a_low * s)
// in float32 otherwise (specs/bagel.md, section 12: understanding and generation mode). Rows of two
// pairs of weights in one launch.
//
// Bound: memory. Moves 2 * rows * (heads + 2 * kv_heads) * head_dim elements (qkv in; q, k and v
// out) and rows * (4 * head_dim + 8) bytes of angles and slots.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct QkNormRopeArgs {
  struct Set {
    const void* q_weight = nullptr;  // [head_dim]
    const void* k_weight = nullptr;  // [head_dim]
    RowSet rows;
  };
  const void* qkv = nullptr;            // [rows, (heads + 2 * kv_heads) * head_dim] = [q | k | v]
  const float* cos = nullptr;           // [rows, head_dim / 2]
  const float* sin = nullptr;           // [rows, head_dim / 2]
  const std::int64_t* slots = nullptr;  // [rows], sample * capacity + position; each in range
  void* q = nullptr;                    // [rows, heads, head_dim], packed
  void* keys = nullptr;    // [samples, capacity, kv_heads, head_dim], packed below a sample
  void* values = nullptr;  // likewise
  Set sets[kRowSets];      // rows in neither: q stays as it is, slots are not looked at
  std::int64_t rows = 0, heads = 0, kv_heads = 0, head_dim = 0, samples = 0, capacity = 0;
  std::int64_t qkv_stride = 0, cos_stride = 0, sin_stride = 0;  // between rows
  std::int64_t key_stride = 0, value_stride = 0;                // between samples
  float eps = 0;
  bool round_every_step = true;
  DType dtype = DType::f32;
};

inline constexpr std::int64_t kMaxHeadDim = 256;

// A slot or a listed row out of range ends the kernel with a trap (a launch failure at the next
// synchronisation).
const char* qk_norm_rope_unsupported(const QkNormRopeArgs& args);
const char* qk_norm_rope(const QkNormRopeArgs& args, CUstream_st* stream);
// Throws std::out_of_range for a slot or a listed row out of range.
void qk_norm_rope_ref(const QkNormRopeArgs& args);

}  // namespace diptych::kernels

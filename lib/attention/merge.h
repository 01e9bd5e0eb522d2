// Attention over a part of the keys, and how two parts become one.
#pragma once

#include "lib/tensor/types.h"

namespace diptych {

struct PartialAttention {
  Tensor out;          // [total_q, heads, head_dim], of the parts' dtype
  Tensor log_sum_exp;  // float32 [total_q, heads], as AttentionCall's
};

// What attention gives over the keys of both parts. out_a and out_b [total_q, heads, head_dim] of
// one dtype, lse_a and lse_b float32 [total_q, heads]. Sums are float32 and rounded once. Where no
// key was seen in one part its log-sum-exp is -infinity and its output must be finite; in at least
// one part a query must have seen a key. Throws c10::Error for other shapes.
PartialAttention merge_attention(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b,
                                 const Tensor& lse_b);

}  // namespace diptych

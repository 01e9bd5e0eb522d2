// What attention in e4m3 reads (kernels/quantize_attention), of attention's operands.
#pragma once

#include "kernels/quantize_attention/quantize_attention.h"
#include "lib/ops/linear_operand.h"

namespace diptych {

using kernels::AttentionScale, kernels::kAttentionScales;

struct QuantizedAttention {
  Tensor q;           // float8_e4m3fn [rows, heads, 128]; so are keys and values
  Tensor keys;        // [samples, capacity, kv_heads, 128], zeros behind a sample's keys
  Tensor values;      // [samples, kv_heads, blocks, kernels::kValueBlockBytes], likewise
  Tensor scales;      // float32 [kAttentionScales]
  Tensor row_scales;  // float32 [rows]: of every row of the output, its e4m3 values' scale
};

// q [rows, heads, 128], its head_dim contiguous and its heads packed; keys, values [samples,
// capacity, kv_heads, 128], each [kv_heads, 128] row contiguous; key_counts int32 [samples] on
// their device. k and v get one scale each, over the rows that count; q a fixed one, for heads that
// were normed (kernels::kNormedQueryScale). The kernel and the reference give the same bits.
QuantizedAttention quantize_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                      const Tensor& key_counts, KernelPolicy policy);

// Whether they have no more elements than the kernel counts.
bool quantize_attention_takes(const Tensor& q, const Tensor& keys);

}  // namespace diptych

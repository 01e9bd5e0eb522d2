// What attention in e4m3 reads (kernels/quantize_attention), of attention's operands.
#pragma once

#include <cstdint>

#include "kernels/quantize_attention/quantize_attention.h"
#include "lib/ops/linear_operand.h"

namespace diptych {

using kernels::AttentionScale, kernels::kAttentionScales;

struct QuantizedAttention {
  Tensor q;             // float8_e4m3fn [rows, heads, head_dim]; so are keys and values,
  Tensor keys, values;  // [samples, capacity, kv_heads, head_dim], zeros behind a sample's keys; or
                        // values in blocks, [samples, kv_heads, blocks, kernels::kValueBlockBytes]
  Tensor scales;  // float32 [kAttentionScales, 4]: an AttentionScale by row, in the first column
  Tensor row_scales;  // float32 [rows]: of every row of the output, its e4m3 values' scale
};

// How values are written: in rows like keys, or in the blocks that hopper_fp8_attention reads.
enum class ValueLayout : std::uint8_t { rows, blocks };

// q [rows, heads, head_dim], its head_dim contiguous and its heads packed; keys, values [samples,
// capacity, kv_heads, head_dim], each [kv_heads, head_dim] row contiguous; key_counts int32
// [samples] on their device. k and v get one scale each, over the rows that count; q a fixed one,
// for heads that were normed (kernels::kNormedQueryScale). Blocks need a head_dim of 128. The
// kernel and the reference give the same bits.
QuantizedAttention quantize_attention(const Tensor& q, const Tensor& keys, const Tensor& values,
                                      const Tensor& key_counts, KernelPolicy policy,
                                      ValueLayout layout = ValueLayout::rows);

// Whether they have no more elements than the kernel counts, in either layout.
bool quantize_attention_takes(const Tensor& q, const Tensor& keys);

}  // namespace diptych

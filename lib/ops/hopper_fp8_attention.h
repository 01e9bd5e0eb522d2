// The kernel of hopper_fp8_attention on tensors.
#pragma once

#include <cstdint>
#include <span>

#include "lib/ops/quantize_attention.h"
#include "lib/tensor/types.h"

namespace diptych {

struct HopperFp8Attention {
  QuantizedAttention operands;  // as quantize_attention() makes them
  Tensor key_counts;            // int32 [samples]: the rows of keys that count, 1 to capacity
  Tensor query_starts;          // int32 [samples + 1], ascending from 0: sample s has the rows of q
                                // from [s] to before [s + 1]
  std::span<const std::int64_t> queries;  // [samples], the same on the host: rows of each
  double scale = 0;
  Tensor log_sum_exp{};  // as HopperAttention's
};
// -> float8_e4m3fn [rows, heads, 128], of the operands' row_scales. Query head h reads key head
// h / (heads / kv_heads). Key counts are read on the device. Throws c10::Error for other shapes and
// dtypes, InputError for what the kernel cannot take and in a build without CUDA.
// There is code for a device where has_hopper_attention().
Tensor hopper_fp8_attention(const HopperFp8Attention& args);

}  // namespace diptych

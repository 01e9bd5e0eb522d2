// The kernel of hopper_attention on tensors.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "lib/tensor/types.h"

namespace diptych {

inline constexpr std::int64_t kHopperHeadDim = 128;

struct HopperAttention {
  Tensor q;             // [rows, heads, 128], sample after sample; row and head strides free
  Tensor keys, values;  // [samples, capacity, kv_heads, 128], heads packed; row and sample strides
                        // free; finite also where they do not count
  Tensor key_counts;    // int32 [samples]: the rows of keys that count, 1 to capacity; causal: no
                        // less than the sample's rows of q
  Tensor query_starts;  // int32 [samples + 1], ascending from 0: sample s has the rows of q from
                        // [s] to before [s + 1]
  std::span<const std::int64_t> queries;  // [samples], the same on the host: rows of each
  double scale = 0;
  bool causal = false;     // lower-right aligned
  Tensor last_key_bias{};  // float32 [samples], of each one's last key that counts; or undefined
  Tensor log_sum_exp{};    // float32 [rows, heads], strides free, which is written; or undefined
};
// -> [rows, heads, 128] in q's dtype, contiguous. Query head h reads key head
// h / (heads / kv_heads). Key counts are read on the device. Throws c10::Error for other shapes and
// dtypes, InputError for what the kernel cannot take and in a build without CUDA.
Tensor hopper_attention(const HopperAttention& args);
// Why the kernel cannot take this call, or nothing; shapes and dtypes must be as above. Does not
// touch the device.
std::optional<std::string> hopper_attention_unsupported(const HopperAttention& args);
// Whether it has code for that device, whose index must be set.
bool has_hopper_attention(at::Device device);

}  // namespace diptych

// The one table of shapes that holds every attention backend to a reference, run on the CPU by
// attention_tests and on CUDA by attention_gpu_tests.
#pragma once

#include <c10/core/Device.h>

namespace diptych::attention_cases {

// Every usable backend, splitkv, math_in_order and `auto` against loops in double, float32 and
// bfloat16, full and causal, whole and sliced caches. Rows behind the keys hold large finite
// values.
void check_table(at::Device device);
// Rows behind the keys hold NaN and must not reach the result.
void check_rows_behind_keys_unread(at::Device device);
// Another sample's tokens must not change a bit of this one's result.
void check_isolation(at::Device device);
// A sample gives the same bits alone and beside others. Holds on the CPU.
void check_alone_equals_packed(at::Device device);
// Values are summed key after key, each 256 apart, where that was asked for.
void check_order(at::Device device);

}  // namespace diptych::attention_cases

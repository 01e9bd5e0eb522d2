// Argument checks of the ops: each throws c10::Error "[op] name ...", with what was found.
#pragma once

#include "lib/ops/linear_operand.h"

namespace diptych::ops {

// float32, bfloat16 or float16, of these sizes, with a contiguous last dimension.
void check_values(const char* op, const char* name, const Tensor& t, at::IntArrayRef shape);
// As check_values, and of the dtype and on the device of `like`.
void check_values(const char* op, const char* name, const Tensor& t, at::IntArrayRef shape,
                  const Tensor& like);
// Of this dtype and these sizes, contiguous, on the device of `like`.
void check_table(const char* op, const char* name, const Tensor& t, at::ScalarType dtype,
                 at::IntArrayRef shape, const Tensor& like);
// Undefined, or float32 [rows, heads] of q [rows, heads, head_dim], on its device.
void check_log_sum_exp(const char* op, const Tensor& sums, const Tensor& q);
// Whether each [heads, head_dim] row of `t` [..., heads, head_dim] is contiguous.
bool heads_packed(const Tensor& t);
// Of a dimension, in elements; 0 of one with a single element, which may carry any.
std::int64_t stride_of(const Tensor& t, std::int64_t dim);
// Of rows that an op makes: none or fp8.
void check_row_format(const char* op, Quantization rows);

}  // namespace diptych::ops

// Matrices of linear layers, plain or quantised (--quantization), and products with them.
#pragma once

#include <cstdint>

#include "lib/ops/ops.h"

namespace diptych {

// none: as the run's dtype. fp8: weights and rows as e4m3. int8: weights as int8, rows as they are.
enum class Quantization { none, fp8, int8 };

// What a weight's values are then; `plain` for none.
at::ScalarType stored_dtype(Quantization quantization, at::ScalarType plain);

struct LinearWeight {
  Tensor values;  // [outputs, inputs]
  Tensor scales;  // float32 [outputs], which each output's values are to be multiplied with;
                  // undefined: 1
};

// Writes x, row by row, to `into`: float8_e4m3fn or int8 values of x's shape and float32 scales,
// packed, on x's device. scale = max |row| / (448 or 127), no less than the smallest normal float;
// rounded to nearest, ties to even. Where a row has an infinity or a NaN its scale is not finite,
// nor is any product with it. The kernel and the reference give the same bits.
// x [rows, width], row stride free.
void quantize_rows(const Tensor& x, const LinearWeight& into, KernelPolicy policy);

// As linear() of a plain weight. fp8: more rows than one are quantised, too, and multiplied in e4m3
// (on CUDA by cuBLASLt or CUTLASS, for bfloat16 and float16, sizes that 16 divides, and compute
// capability 8.9 or newer: InputError elsewhere; the reference sums in float32). int8: more rows
// than 8 are multiplied with a copy of the weight in their dtype, made for the call. Fewer rows of
// either take the weight as it is, times unrounded rows, summed in float32.
Tensor linear(const Tensor& x, const LinearWeight& weight, const Tensor& bias, KernelPolicy policy);

}  // namespace diptych

// Many rows through a linear layer whose weights are int8 and whose rows are not (W8A16):
// y[m][n] = scale[n] * sum_k weight[n][k] * x[m][k] + bias[n]; sums in float32, rounded once. The
// weights are read as they are stored, so no copy of them in the rows' dtype is made.
//
// For compute capability 9.0 alone (wgmma, TMA). What is multiplied from registers is the weight:
// two warpgroups of a block take 64 outputs each, turn the pieces of 64 inputs that they find in
// shared memory into the rows' dtype, which holds every int8, and multiply them with the block's
// 64, 128 or 256 rows while they turn the next. Two blocks of a cluster have neighbouring outputs
// and fetch half of those rows each, for both. Results leave, a row's outputs together, while the
// next tile's products run.
//
// Bound: memory for tens of rows, as it reads outputs * inputs bytes of weights, half of what
// bfloat16 reads and a fifth of what a copy of them moves; arithmetic for thousands. 3584 to 37888
// on an H200: 64 rows 0.065 ms, 2.1 TB/s, half of what a large copy reached (with a copy of the
// weights 0.184 ms); 8192 rows 3.33 ms, 669 TFLOP/s, 84 % of what one large product reached (with a
// copy 3.49 ms, bfloat16 weights by cuBLAS 3.37 ms).
#pragma once

#include <iterator>

#include "kernels/types.h"

namespace diptych::kernels {

// Rows that a block computes at a time, by Int8LinearArgs::shape.
inline constexpr int kInt8LinearRows[] = {64, 128, 256};
inline constexpr int kInt8LinearShapes = std::size(kInt8LinearRows);

struct Int8LinearArgs {
  const void* x = nullptr;              // [rows, inputs]
  const std::int8_t* weight = nullptr;  // [outputs, inputs], packed
  const float* scales = nullptr;        // [outputs]
  const void* bias = nullptr;           // [outputs], or null
  void* y = nullptr;                    // [rows, outputs]
  std::int64_t rows = 0, inputs = 0, outputs = 0;
  std::int64_t x_stride = 0, y_stride = 0;
  DType dtype = DType::bf16;  // of x, bias and y; the kernel takes bf16 and f16
  int shape = 0;              // below kInt8LinearShapes; sums do not depend on it
};

// Rows of x and of the weight must begin, and those of y begin and end, at multiples of 16 bytes;
// rows do not overlap.
const char* int8_linear_unsupported(const Int8LinearArgs& args);
// Whether the current device is of compute capability 9.0 and the build has code for it.
bool int8_linear_runs_here();
const char* int8_linear(const Int8LinearArgs& args, CUstream_st* stream);
void int8_linear_ref(const Int8LinearArgs& args);

}  // namespace diptych::kernels

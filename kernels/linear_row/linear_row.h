// A few rows through a linear layer, as a decoded token or the markers of an image block go:
// y[m][n] = scale[n] * x_scale[m] * sum_k weight[n][k] * x[m][k] + bias[n], in float32, rounded
// once; a scale is 1 where its factor is not quantised.
//
// Quantised weights whose inputs are a multiple of 16, with rows of e4m3 or 16 bits: a block
// computes 16 outputs of all rows on tensor cores, from weights that it has on their way to shared
// memory. Each of its warps takes every 4th, 8th, 12th or 16th piece of 128 inputs, in their order,
// and the warps' sums are added in theirs. 2 to 16 rows of 16 bits by weights of 16
// bits: likewise, in pieces of 64 inputs that go straight to registers, with 16 or 32 outputs a
// block. All else: two warps compute one output of all
// rows, four where it has more than 12 KiB of weights; their lanes read the row of weights in
// 16-byte vectors past the L1 cache, which keeps x. Sums depend on the shape, but not on the number
// of rows (of 16-bit weights: from two on), nor on what else is in the call. One row of bfloat16 by
// quantised weights is multiplied as float16 times a power of two where shared memory allows: its
// elements below 2^-31 of its largest may be rounded.
//
// Bound: memory. Reads outputs * inputs elements of weights, once for all rows; the first of them
// before kernels that are still running have ended. None of the last few launches may write them.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr std::int64_t kMostLinearRows = 16;
inline constexpr int kLinearShapes = 3;

struct LinearRowArgs {
  const void* x = nullptr;          // [rows, inputs], packed
  const float* x_scales = nullptr;  // [rows] of x that is e4m3, as the weights must be; else null
  const void* weight = nullptr;     // [outputs, inputs], packed
  const float* scales = nullptr;    // [outputs], of quantised weights
  const void* bias = nullptr;       // [outputs], or null
  void* y = nullptr;                // [rows, outputs], packed
  // Up to kMostLinearRows of int8 weights, of e4m3 rows, and of 16 bits by 16-bit weights if 8
  // divides the inputs and x and weight are multiples of 16 bytes; else 1.
  std::int64_t rows = 1;
  std::int64_t inputs = 0, outputs = 0;
  DType dtype = DType::f32;       // of plain x, bias, y
  Stored stored = Stored::plain;  // of the weights
  // How the tensor cores' work on quantised weights is cut, below kLinearShapes: 8 warps a block
  // and 4 steps of 64 inputs of each on their way (up to 4224 outputs 12 and 4, of e4m3 rows 16 and
  // 2), 4 and 4, 4 and 8.
  int shape = 0;
};

const char* linear_row_unsupported(const LinearRowArgs& args);
const char* linear_row(const LinearRowArgs& args, CUstream_st* stream);
void linear_row_ref(const LinearRowArgs& args);

}  // namespace diptych::kernels

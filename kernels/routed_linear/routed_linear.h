// Rows of two weight sets through a linear layer in one launch, read and written where they lie:
// y[m][n] = scale[n] * x_scale[m] * sum_k weight[n][k] * x[m][k] + bias[n], by the weights of the
// set that row m is in; sums in float32, rounded once. A scale is 1 where its factor is not
// quantised.
//
// For compute capability 9.0 alone (wgmma, TMA); elsewhere rows are gathered, multiplied by each
// set's weights and scattered. Two blocks of a cluster compute 256 rows of a set by 256 outputs. Of
// a block, one warpgroup fetches pieces of 128 rows, each from its own address, and tiles of half
// of the weights' rows for both blocks, four pieces on their way; two warpgroups hold the sums of
// 64 rows each and write them to the rows' own addresses while the next tile is fetched.
//
// Bound: arithmetic for many rows, the weights' bytes for few. Nothing splits the inputs, so few
// tiles leave clusters idle. 8208 listed rows of 3584 to 37888 on an H200: 4.08 ms in bfloat16, 546
// TFLOP/s, 69 % of what one large product reached, and 2.54 ms of e4m3, 878 TFLOP/s, 63 %.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct RoutedLinearArgs {
  struct Set {
    const void* weight = nullptr;   // [outputs, inputs], packed
    const float* scales = nullptr;  // [outputs], of quantised weights
    const void* bias = nullptr;     // [outputs], or null
    RowSet rows;
  };
  const void* x = nullptr;          // [rows, inputs], stored as the weights are
  const float* x_scales = nullptr;  // [rows] of e4m3 rows
  void* y = nullptr;                // [rows, outputs]
  std::int64_t rows = 0, inputs = 0, outputs = 0;
  std::int64_t x_stride = 0, y_stride = 0;
  Set sets[kRowSets];
  DType dtype = DType::bf16;      // of plain x and weights, bias and y; the kernel: bf16, f16
  Stored stored = Stored::plain;  // of x and the weights of both sets; plain or e4m3
};

// All rows must begin and end at multiples of 16 bytes.
const char* routed_linear_unsupported(const RoutedLinearArgs& args);
// Tiles that the current device computes at a time, each of up to kRoutedLinearTile rows of one set
// by as many outputs; 0 where it is not of compute capability 9.0 or the build has no code for it.
inline constexpr std::int64_t kRoutedLinearTile = 256;
std::int64_t routed_linear_tiles();
const char* routed_linear(const RoutedLinearArgs& args, CUstream_st* stream);
void routed_linear_ref(const RoutedLinearArgs& args);

}  // namespace diptych::kernels

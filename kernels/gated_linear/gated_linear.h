// The first half of a gated feed-forward layer in one launch: y[m][n] = silu(gate) * up, where gate
// and up are the products of x[m] with the rows n and inner + n of the weight. Sums are in float32;
// gate, up, silu(gate) and y are rounded to the dtype, as if a product had written them and
// silu_mul read them.
//
// For compute capability 9.0 alone (wgmma, TMA). Two blocks of a cluster compute 256 rows by 128
// columns of y; each fetches its own rows of x, and one the gate's, the other the up rows of the
// weight for both. Of a block, one thread fetches pieces of 64 inputs, four on their way, and two
// warpgroups hold the sums of 64 rows by 128 gates and 128 ups each, so both factors of an element
// are in one thread. A warpgroup's results leave while the products of its next tile run.
//
// Bound: arithmetic. It saves writing and reading gate and up. 8192 rows of 3584 to 18944 on an
// H200: 3.36 ms, 662 TFLOP/s, 83 % of what one large product reached (3.65 ms by two kernels).
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct GatedLinearArgs {
  const void* x = nullptr;       // [rows, inputs]
  const void* weight = nullptr;  // [2 * inner, inputs], packed: gate, then up
  void* y = nullptr;             // [rows, inner]
  std::int64_t rows = 0, inputs = 0, inner = 0;
  std::int64_t x_stride = 0, y_stride = 0;
  DType dtype = DType::bf16;  // the kernel takes bf16 and f16
};

// All rows must begin at multiples of 16 bytes.
const char* gated_linear_unsupported(const GatedLinearArgs& args);
// Whether the current device is of compute capability 9.0 and the build has code for it.
bool gated_linear_runs_here();
const char* gated_linear(const GatedLinearArgs& args, CUstream_st* stream);
void gated_linear_ref(const GatedLinearArgs& args);

}  // namespace diptych::kernels

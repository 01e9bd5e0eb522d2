// One row through a linear layer, as a decoded token goes: y[n] = sum_k weight[n][k] * x[k] +
// bias[n], in float32, rounded once. A warp computes one output: its lanes read the row of weights
// in 16-byte vectors past the L1 cache, which keeps x.
//
// Bound: memory. Reads outputs * inputs elements of weights.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct LinearRowArgs {
  const void* x = nullptr;       // [inputs], packed
  const void* weight = nullptr;  // [outputs, inputs], packed
  const void* bias = nullptr;    // [outputs], or null
  void* y = nullptr;             // [outputs], packed
  std::int64_t inputs = 0, outputs = 0;
  DType dtype = DType::f32;
};

const char* linear_row_unsupported(const LinearRowArgs& args);
const char* linear_row(const LinearRowArgs& args, CUstream_st* stream);
void linear_row_ref(const LinearRowArgs& args);

}  // namespace diptych::kernels

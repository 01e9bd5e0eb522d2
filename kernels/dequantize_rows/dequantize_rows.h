// What quantize_rows made of rows as int8, as numbers again: y[r][i] = values[r][i] * scales[r],
// rounded to the dtype.
//
// Bound: memory. Reads rows * width bytes and writes as many elements.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct DequantizeRowsArgs {
  const std::int8_t* values = nullptr;  // [rows, width], packed
  const float* scales = nullptr;        // [rows]
  void* y = nullptr;                    // [rows, width], packed
  std::int64_t rows = 0, width = 0;
  DType dtype = DType::f32;  // of y
};

const char* dequantize_rows_unsupported(const DequantizeRowsArgs& args);
const char* dequantize_rows(const DequantizeRowsArgs& args, CUstream_st* stream);
void dequantize_rows_ref(const DequantizeRowsArgs& args);

}  // namespace diptych::kernels

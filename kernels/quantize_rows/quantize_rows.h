// Rows as one-byte elements with a scale each: scales[r] = max |x[r]| / limit, but no less than the
// smallest normal float (rows of zeros), values[r][i] = x[r][i] * (1 / scales[r]) rounded to
// nearest, ties to even; the limit is 448 for e4m3 and 127 for int8. The scale of a row with an
// infinity or a NaN is not finite, and no product with the row is: such a row is never hidden.
// Where there is an activation, x is what it makes of the elements given, rounded to their type.
//
// Bound: memory. Reads rows * width elements and writes as many bytes. The row stays in registers
// between the two passes while 4 vectors a thread hold it (32768 bf16).
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr int kQuantizeShapes = 2;

// Gaussian error linear units (Hendrycks and Gimpel 2016, arXiv:1606.08415): x Phi(x), or with tanh
// for Phi.
enum class Activation { none, gelu, gelu_tanh };

struct QuantizeRowsArgs {
  const void* x = nullptr;  // [rows, width]
  void* values = nullptr;   // [rows, width], packed
  float* scales = nullptr;  // [rows]
  std::int64_t rows = 0, width = 0;
  std::int64_t x_stride = 0;  // between rows
  DType dtype = DType::f32;   // of x
  Stored stored = Stored::e4m3;
  Activation activation = Activation::none;  // of e4m3 alone
  // How wide rows are cut, below kQuantizeShapes: 4 vectors a thread, or 2. The bits do not depend
  // on it.
  int shape = 0;
};

const char* quantize_rows_unsupported(const QuantizeRowsArgs& args);
const char* quantize_rows(const QuantizeRowsArgs& args, CUstream_st* stream);
void quantize_rows_ref(const QuantizeRowsArgs& args);

}  // namespace diptych::kernels

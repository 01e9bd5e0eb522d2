// y = T(x / sqrt(mean(x^2) + eps)) * weight, where T(...) rounds to the dtype and the product is
// rounded to it again (transformers Qwen2RMSNorm); with `delta`, x + delta (rounded) takes x's
// place and is stored to `sum`.
//
// Bound: memory. Moves 2 * rows * width elements (x, y); 4 with delta (x, delta, sum, y). The row
// stays in registers between the two passes while 4 vectors a thread hold it (32768 bf16).
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct RmsNormArgs {
  const void* x = nullptr;       // [rows, width]
  const void* delta = nullptr;   // [rows, width], or null
  void* sum = nullptr;           // [rows, width], with delta only; may be x
  const void* weight = nullptr;  // [width]
  void* y = nullptr;             // [rows, width]; may be neither x nor delta nor sum
  std::int64_t rows = 0, width = 0;
  std::int64_t x_stride = 0, delta_stride = 0, sum_stride = 0, y_stride = 0;  // between rows
  float eps = 0;
  DType dtype = DType::f32;
};

const char* rms_norm_unsupported(const RmsNormArgs& args);
const char* rms_norm(const RmsNormArgs& args, CUstream_st* stream);
void rms_norm_ref(const RmsNormArgs& args);

}  // namespace diptych::kernels

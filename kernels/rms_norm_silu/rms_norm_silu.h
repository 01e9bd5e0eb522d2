// What lies between two convolutions of a residual autoencoder, in one pass over its maps:
//   s = T(x + parts[0] + ...),   y = P(silu(s / sqrt(mean(s^2) + eps) * weight)),
// where T rounds to the maps' dtype and P to that of convolutions; silu(v) = v / (1 + exp(-v)).
// Between them everything is float32. s is stored to `sum` on request. Without a weight y is P(s).
//
// Bound: memory. Reads x and the parts once, writes sum and y once: a row stays in registers while
// 4 vectors of 8 elements a thread hold it (1024 columns); a wider or misaligned one, or one whose
// columns 8 does not divide, is read twice.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr int kNormParts = 3;

struct RmsNormSiluArgs {
  const void* x = nullptr;             // [rows, width] of `dtype`, or null
  const void* parts[kNormParts] = {};  // [rows, width] of `part_dtype`, each
  const void* weight = nullptr;        // [width] of `dtype`, or null
  void* sum = nullptr;                 // [rows, width] of `dtype`, or null; may be x
  void* y = nullptr;                   // [rows, width] of `part_dtype`, or null
  std::int64_t rows = 0, width = 0;    // packed, but for y:
  std::int64_t frame_rows = 0;         // rows of y that follow each other, above 0
  std::int64_t y_frame_stride = 0;     // and from there to the next ones
  int part_count = 0;                  // of the first in `parts`
  float eps = 0;
  DType dtype = DType::f32, part_dtype = DType::f32;  // both alike, or float32 and float16
};

const char* rms_norm_silu_unsupported(const RmsNormSiluArgs& args);
const char* rms_norm_silu(const RmsNormSiluArgs& args, CUstream_st* stream);
void rms_norm_silu_ref(const RmsNormSiluArgs& args);

}  // namespace diptych::kernels

// What lies between two convolutions of a residual autoencoder, in one pass over its maps:
//   s = T(x + parts[0] + ...),   y = P(silu(s / sqrt(mean(s^2) + eps) * weight)),
// where T rounds to the maps' dtype and P to that of convolutions; silu(v) = v / (1 + exp(-v)).
// Between them everything is float32. s is stored to `sum` on request. Without a weight y is P(s).
//
// With `before`, y becomes what conv3d.h reads of pairs of frames: of d2 and d3, a pair's y as it
// would be, and d0 and d1 before it, the maps d1 + d2, d2 - d1, d0 - d2 and d3 - d1, each rounded.
// The last two frames take the place of those in `before`.
//
// Bound: memory. Reads x and the parts once, writes sum and y once: the threads of a row hold it in
// registers, 3 vectors of 8 elements each, or 4 where a whole warp has it (1024 columns). A wider
// or misaligned row, one whose columns 8 does not divide, and the sum of several parts of more than
// 192 columns are read twice, an element at a time. With `before` y has twice the frames, and
// `before` is read and written. Figures: docs/speed.md, "Convolutions of clips".
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr int kNormParts = 3;
// Columns of a row that a warp holds, which a row of pairs must be.
inline constexpr std::int64_t kMostPairedWidth = 1024;

struct RmsNormSiluArgs {
  const void* x = nullptr;             // [rows, width] of `dtype`, or null
  const void* parts[kNormParts] = {};  // [rows, width] of `part_dtype`, each
  const void* weight = nullptr;        // [width] of `dtype`, or null
  void* sum = nullptr;                 // [rows, width] of `dtype`, or null; may be x
  void* y = nullptr;                   // [rows, width] of `part_dtype`, or null
  std::int64_t rows = 0, width = 0;    // packed, but for y:
  std::int64_t frame_rows = 0;         // rows of y that follow each other, above 0
  std::int64_t y_frame_stride = 0;     // and from there to the next ones
  // Two frames of `part_dtype`, 16 bits in the kernel, or null. y is then [4, pairs] frames, and
  // there is one source, of whole pairs and in vectors, and no `sum`.
  void* before = nullptr;
  std::int64_t before_frame_stride = 0;
  int part_count = 0;  // of the first in `parts`
  float eps = 0;
  DType dtype = DType::f32, part_dtype = DType::f32;  // both alike, or float32 and float16
};

const char* rms_norm_silu_unsupported(const RmsNormSiluArgs& args);
const char* rms_norm_silu(const RmsNormSiluArgs& args, CUstream_st* stream);
void rms_norm_silu_ref(const RmsNormSiluArgs& args);

}  // namespace diptych::kernels

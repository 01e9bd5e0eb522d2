// y = T(x / sqrt(mean(x^2) + eps)) * weight, where T(...) rounds to the dtype and the product is
// rounded to it again (transformers Qwen2RMSNorm); with `delta`, x + delta (rounded) takes x's
// place and is stored to `sum`. Rows of two weights in one launch. With `scales`, y's rows are
// quantised to e4m3 (quantize_rows.h) from the rounded values.
//
// Bound: memory. Moves 2 * rows * width elements (x, y); 4 with delta (x, delta, sum, y); a
// quantised y has bytes for elements. The row stays in registers from its first to its last use
// while 4 vectors a thread hold it (32768 bf16). Of many rows of 16-bit elements that are not
// quantised, no wider than shared memory holds three of (1032 to 4008 columns), the next are
// fetched while one is worked on. Up to 64 rows: reads the weights before kernels that are still
// running have ended. None of the last few launches may write them.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr int kNormShapes = 2;

struct RmsNormArgs {
  struct Set {
    const void* weight = nullptr;  // [width]
    RowSet rows;
  };
  const void* x = nullptr;      // [rows, width]
  const void* delta = nullptr;  // [rows, width], or null
  void* sum = nullptr;          // [rows, width], with delta only; may be x
  void* y = nullptr;            // [rows, width], e4m3 with scales; may be neither x, delta nor sum
  float* scales = nullptr;      // [rows], or null
  Set sets[kRowSets];
  std::int64_t rows = 0, width = 0;
  std::int64_t x_stride = 0, delta_stride = 0, sum_stride = 0, y_stride = 0;  // between rows
  float eps = 0;
  // That a thread takes of a wide row, 1, 2 or 4 (more where a block's threads run out): which is
  // fastest depends on rows and device, and the order of sums depends on it.
  int thread_vectors = 2;
  DType dtype = DType::f32;
  // How a call of many rows is cut, below kNormShapes: rows fetched ahead (unless quantised), or
  // none. The bits do not depend on it.
  int shape = 0;
};

// A listed row out of range ends the kernel with a trap (a launch failure at the next
// synchronisation).
const char* rms_norm_unsupported(const RmsNormArgs& args);
const char* rms_norm(const RmsNormArgs& args, CUstream_st* stream);
// Throws std::out_of_range for a listed row out of range.
void rms_norm_ref(const RmsNormArgs& args);

}  // namespace diptych::kernels

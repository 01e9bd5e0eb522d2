// y = (x - mean) / sqrt(variance + eps) * (base + factor) + offset, in float32 and rounded once;
// with `delta`, x + gate * delta (rounded) takes x's place and is stored to `sum`. Factors, offsets
// and gates are rows of small float32 tables: those of the layer's weights, or of the modulation by
// a timestep, of which each row has its own group. With `scales`, y's rows are quantised to e4m3
// (quantize_rows.h) from the rounded values. Without y, the sum is all.
//
// Bound: memory. Moves 2 * rows * width elements (x, y); 4 with delta (x, delta, sum, y); 3 without
// y; a quantised y has bytes for elements. Tables are read by every row, from the caches. The row
// stays in registers from its first to its last use while 4 vectors a thread hold it (32768 bf16).
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct LayerNormArgs {
  // Of a row: float32 [groups, width], contiguous but for the stride between rows.
  struct Table {
    const float* rows = nullptr;
    std::int64_t stride = 0;
  };
  struct Groups {
    const std::int64_t* of_row = nullptr;  // [rows]; null: group 0 for all
    std::int64_t count = 1;                // a group out of range ends the kernel with a trap
  };
  const void* x = nullptr;      // [rows, width]
  const void* delta = nullptr;  // [rows, width], or null
  void* sum = nullptr;          // [rows, width], with delta only; may be x
  Table gate;                   // with delta; null rows: 1
  Groups gate_groups;
  void* y =
      nullptr;  // [rows, width], e4m3 with scales; may be neither x, delta nor sum; null: none
  float* scales = nullptr;  // [rows], or null
  Table factor, offset;     // with y
  Groups groups;
  float base = 0;  // that factors are added to
  float eps = 0;
  std::int64_t rows = 0, width = 0;
  std::int64_t x_stride = 0, delta_stride = 0, sum_stride = 0, y_stride = 0;  // between rows
  DType dtype = DType::f32;
};

const char* layer_norm_unsupported(const LayerNormArgs& args);
const char* layer_norm(const LayerNormArgs& args, CUstream_st* stream);
void layer_norm_ref(const LayerNormArgs& args);

}  // namespace diptych::kernels

// In place, of one or two parts of each row: x = T(x / sqrt(mean(x^2) + eps) * weight), the mean
// over the whole part, all heads together; then, where there are cosines and sines, each pair of
// neighbouring columns (a, b) becomes T(a cos - b sin), T(a sin + b cos), by the row's position and
// the pair's place in its head. T(...) rounds to the dtype; all between is float32.
//
// Bound: memory. Moves 2 * rows * parts * width elements (read, written). A head's cosines and
// sines are read by all heads of a row, from the caches. The part stays in registers between its
// two uses while 4 vectors a thread hold it (32768 bf16).
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr int kNormRopeParts = 2;

struct RmsNormRopeArgs {
  void* x = nullptr;  // [rows, at least parts * width]: part p begins at column p * width
  const void* weights[kNormRopeParts] = {};  // [width]
  const float* cos = nullptr;                // [positions, head_dim / 2], or null
  const float* sin = nullptr;                // likewise
  int parts = 1;
  std::int64_t rows = 0, width = 0;
  std::int64_t x_stride = 0;   // between rows
  std::int64_t positions = 1;  // row r is at position r % positions
  std::int64_t head_dim = 0;   // with cos; divides width
  float eps = 0;
  DType dtype = DType::f32;
};

const char* rms_norm_rope_unsupported(const RmsNormRopeArgs& args);
const char* rms_norm_rope(const RmsNormRopeArgs& args, CUstream_st* stream);
void rms_norm_rope_ref(const RmsNormRopeArgs& args);

}  // namespace diptych::kernels

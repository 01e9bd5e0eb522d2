// y = T(silu(gate)) * up, where T(...) rounds to the dtype and the product is rounded to it again;
// silu(x) = x / (1 + exp(-x)) in float32, of bfloat16 with the hardware's power and reciprocal,
// whose errors rounding hides but for at most 8 of all 65536 gates (tests). With `scales`, y's rows
// are quantised to e4m3 (quantize_rows.h) from the rounded values.
//
// Bound: memory. Moves 3 * rows * inner elements (gate, up, y); a quantised y has bytes for
// elements. Quantised, a row of 16-bit elements is fetched while others are worked on, as far as
// shared memory holds three rows' gate and up (19200 columns of an H200's); else it stays in
// registers between its two passes while 4 vectors a thread hold it (32768 bf16); a longer one is
// computed twice.
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

inline constexpr int kSiluShapes = 3;

struct SiluMulArgs {
  const void* gate_up = nullptr;  // [rows, 2 * inner] = [gate | up]
  void* y = nullptr;              // [rows, inner], e4m3 with scales
  float* scales = nullptr;        // [rows], or null
  std::int64_t rows = 0, inner = 0;
  std::int64_t gate_up_stride = 0, y_stride = 0;  // between rows
  DType dtype = DType::f32;
  // How a quantised call is cut, below kSiluShapes: rows fetched ahead for 3 vectors a thread, for
  // 4, none. The bits do not depend on it.
  int shape = 0;
};

const char* silu_mul_unsupported(const SiluMulArgs& args);
const char* silu_mul(const SiluMulArgs& args, CUstream_st* stream);
void silu_mul_ref(const SiluMulArgs& args);

}  // namespace diptych::kernels

// y = T(silu(gate)) * up, where T(...) rounds to the dtype and the product is rounded to it again;
// silu(x) = x / (1 + exp(-x)) in float32.
//
// Bound: memory. Moves 3 * rows * inner elements (gate, up, y).
#pragma once

#include "kernels/types.h"

namespace diptych::kernels {

struct SiluMulArgs {
  const void* gate_up = nullptr;  // [rows, 2 * inner] = [gate | up]
  void* y = nullptr;              // [rows, inner]
  std::int64_t rows = 0, inner = 0;
  std::int64_t gate_up_stride = 0, y_stride = 0;  // between rows
  DType dtype = DType::f32;
};

const char* silu_mul_unsupported(const SiluMulArgs& args);
const char* silu_mul(const SiluMulArgs& args, CUstream_st* stream);
void silu_mul_ref(const SiluMulArgs& args);

}  // namespace diptych::kernels

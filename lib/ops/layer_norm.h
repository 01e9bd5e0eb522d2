// The element-wise chains of a diffusion transformer's rows: gated sums and modulated layer norms,
// in float32 between the roundings to the rows' dtype (float32, bfloat16 or float16).
#pragma once

#include "lib/ops/linear_operand.h"

namespace diptych {

// y = norm(x) * factor + offset. Tables are float32 [groups, width], row stride free.
struct NormTerms {
  Tensor factor, offset;
  bool beside_one = false;  // factor is added to 1, as the scale of a modulation
  Tensor groups{};          // int64 [rows]: the row of the tables; undefined: row 0 for all
};

// x = round(x + gate * delta)
struct GatedSum {
  Tensor delta;     // [rows, width] of x's dtype, row stride free
  Tensor gate{};    // float32 [groups, width], row stride free; undefined: 1
  Tensor groups{};  // as of NormTerms
};

// round((x - mean) / sqrt(variance + eps) * factor + offset) of each row. x [rows, width], row
// stride free. `rows`: none, or fp8, which gives the bits that quantize_rows makes of the plain
// ones. A group out of range throws on the CPU and traps on the GPU.
LinearOperand layer_norm(const Tensor& x, const NormTerms& terms, double eps, Quantization rows,
                         const Kernels& kernels);
// The sum, in place, then layer_norm(x): one pass instead of two. x contiguous.
LinearOperand add_layer_norm_(Tensor& x, const GatedSum& sum, const NormTerms& terms, double eps,
                              Quantization rows, const Kernels& kernels);
// The sum alone.
void add_gated_(Tensor& x, const GatedSum& sum, const Kernels& kernels);

}  // namespace diptych

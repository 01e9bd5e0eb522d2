// What linear layers multiply, plain or quantised (--quantization): weights, and the rows that meet
// them; the operations that make such rows, and the products.
#pragma once

#include <cstdint>
#include <span>

#include "lib/base/choices.h"
#include "lib/ops/launch_label.h"
#include "lib/ops/ops.h"

namespace diptych {

// What values are then; `plain` for none.
at::ScalarType stored_dtype(Quantization quantization, at::ScalarType plain);

struct LinearOperand {
  Tensor values;  // a weight [outputs, inputs], or rows [rows, inputs]
  Tensor scales;  // float32 [outputs] or [rows], which each row's values are to be multiplied with;
                  // undefined: 1
  // options: of the plain values
  static LinearOperand empty(at::IntArrayRef shape, const at::TensorOptions& options,
                             Quantization quantization);
};

// Writes x, row by row, to `into`: float8_e4m3fn or int8 values of x's shape and float32 scales,
// packed, on x's device. scale = max |row| / (448 or 127), no less than the smallest normal float;
// rounded to nearest, ties to even. Where a row has an infinity or a NaN its scale is not finite,
// nor is any product with it. The kernel and the reference give the same bits.
// x [rows, width], row stride free.
void quantize_rows(const Tensor& x, const LinearOperand& into, const Kernels& kernels);
// The same in memory of its own. none: x itself.
LinearOperand quantize_rows(const Tensor& x, Quantization quantization, const Kernels& kernels);

// The operations of ops.h that make a linear layer's rows. `rows`: none, or fp8, which gives the
// bits that quantize_rows makes of the plain ones, on CUDA in the operation's one launch.
LinearOperand rms_norm(const Tensor& x, std::span<const NormRoute> routes, double eps,
                       Quantization rows, KernelPolicy policy);
LinearOperand add_rms_norm_(Tensor& x, const Tensor& delta, std::span<const NormRoute> routes,
                            double eps, Quantization rows, const Kernels& kernels);
LinearOperand silu_mul(const Tensor& gate_up, Quantization rows, const Kernels& kernels);
// The same, written to y [rows, inner] of that format, row stride of plain values free.
void silu_mul_into(const LinearOperand& y, const Tensor& gate_up, const Kernels& kernels);

// x Phi(x), or with tanh for Phi (kernels/quantize_rows/quantize_rows.h).
enum class Gelu { exact, tanh };
// gelu(x), rounded to x's dtype, as rows: x itself, which is overwritten, or what quantize_rows
// makes of it, on CUDA in one launch.
LinearOperand gelu_(Tensor x, Gelu gelu, Quantization rows, const Kernels& kernels);

// Whether linear() quantises that many plain rows for such a weight.
bool quantizes_rows(Quantization weight, std::int64_t rows);

// As linear() of a plain weight. fp8: more rows than one are quantised, too; more than 16 are
// multiplied in e4m3 (on CUDA by cuBLASLt or CUTLASS, for bfloat16 and float16, sizes that 16
// divides, and compute capability 8.9 or newer: InputError elsewhere; the reference sums in
// float32). int8: more rows than 16 are multiplied with a copy of the weight in their dtype, made
// for the call, or, from kFewestMixedRows on, with the weight as it is, if the device has a kernel
// for that (has_mixed_kernel), they are bfloat16 or float16 and rows begin at multiples of 16
// bytes. Up to 16 rows of either are summed in float32, those of int8 and a single one of fp8
// unrounded. From 2 rows on, a tuning may choose for bfloat16 among the ways that its sizes allow
// (impossible_choice()).
Tensor linear(const Tensor& x, const LinearOperand& weight, const Tensor& bias,
              const Kernels& kernels);
// The same, written to y [rows, outputs], contiguous, of the dtype of the bias and of plain rows.
// fp8 weights take rows that are quantised already.
void linear_into(Tensor y, const LinearOperand& x, const LinearOperand& weight, const Tensor& bias,
                 const Kernels& kernels);

// gelu_() of that, in y's place. On CUDA a plain product of 16 bits with a bias and tanh is
// activated before it is rounded, in the product's launch. x is let go of behind the product.
LinearOperand linear_gelu_into(Tensor y, LinearOperand x, const LinearOperand& weight,
                               const Tensor& bias, Gelu gelu, Quantization rows,
                               const Kernels& kernels);

struct LinearRoute {
  LinearOperand weight;  // [outputs, inputs]
  Tensor bias;           // [outputs], or undefined
  RowSet rows;
  LaunchName label = {};  // of what is launched for this set alone
};
// y[row] = x[row] * weight^T + bias, by the weight of the set that the row is in: linear_into() of
// each set's rows. Those of a range are read and written where they lie. So are listed ones on
// compute capability 9.0 where y is of bfloat16 or float16 and has as many rows as x, rows begin
// and end at multiples of 16 bytes and the policy is strict or it is expected to be faster
// (routed_kernel_pays()), in one launch for both sets, with copies of weights of int8, and e4m3 by
// e4m3 whatever their number. Else, and where a set has so few rows that its product is another
// (one plain row and weights of e4m3, 8 and weights of int8), listed rows are gathered before and
// scattered behind. x [rows, inputs]; y [rows, outputs], contiguous, which may end behind the last
// row of the sets. Returns whether it was that one launch.
bool routed_linear_into(Tensor y, const LinearOperand& x, std::span<const LinearRoute> routes,
                        const Kernels& kernels);

struct RoutedSizes {
  std::int64_t rows_of_set[2] = {};
  std::int64_t inputs = 0, outputs = 0;
  // Whether weights of int8 would be copied for gathered rows, too; of other weights nothing is.
  bool copied_anyway = true;
};
// Whether that one launch, of which a GPU computes `at_once` tiles of 256 rows of a set by 256
// outputs at a time, is expected to be faster than gathering, a product for each set and
// scattering: at BAGEL-7B's sizes on an H200 (tests/ops/products_bench) it then was, but for 3 % at
// worst. Copies of weights that could be done without are expected to pay from 4096 rows on.
// `stored`: what weights are.
bool routed_kernel_pays(at::ScalarType stored, const RoutedSizes& sizes, std::int64_t at_once);

// Whether the device, a GPU with its index, has the kernel that multiplies rows of 16 bits and
// weights of int8 without a copy of these.
bool has_mixed_kernel(at::Device device);

// Whether the device, a GPU with its index, has the kernel that routed_gated_linear() may take.
bool has_gated_kernel(at::Device device);
// Whether routed_gated_linear() computes so many rows of a range with one kernel: plain weights
// (which the caller knows), bfloat16 or float16 on a GPU of compute capability 9.0, inner and
// inputs that 8 divides, and the choice is GatedProduct::one_kernel. `options`: dtype and device of
// x.
bool gates_in_one_kernel(const at::TensorOptions& options, std::int64_t rows, std::int64_t inner,
                         std::int64_t inputs, const Kernels& kernels);
// silu_mul() of what routed_linear_into() makes of plain rows, by weights [2 * inner, inputs]
// without bias -> [rows, inner]. With one kernel or two the same values are rounded, and sums are
// in another order.
Tensor routed_gated_linear(const Tensor& x, std::span<const LinearRoute> routes,
                           const Kernels& kernels);

}  // namespace diptych

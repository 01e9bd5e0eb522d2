// Quantised rows and products with quantised weights, on any device under any policy: bits held to
// the kernels' references on the CPU, products to float64.
#pragma once

#include "lib/ops/linear_operand.h"

namespace diptych::testing {

// Against values worked out by hand.
void check_quantized_by_hand(at::Device device, KernelPolicy policy);
void check_quantize_rows(at::Device device, KernelPolicy policy);
// gelu of rows of every dtype, plain and as e4m3: near float64's, and the kernel's near that of its
// reference; and of products of no row, of one and of many.
void check_gelu(at::Device device, KernelPolicy policy);
// What attention in e4m3 reads: the bits of the kernel's reference, whatever lies behind the keys
// that count.
void check_quantize_attention(at::Device device, KernelPolicy policy);
// `shrink`: what the released model's widths are divided by.
void check_quantized_linear(at::Device device, KernelPolicy policy, std::int64_t shrink);
// The device's products are those of the reference on the CPU, but for the order of sums.
void check_quantized_like_cpu(at::Device device, KernelPolicy policy);
// Rows that norms and the activation quantise have the bits of quantize_rows, and so has what is
// multiplied with them, wherever it begins.
void check_rows_made_quantized(at::Device device, KernelPolicy policy);
void check_product_of_quantized_rows(at::Device device, KernelPolicy policy);

}  // namespace diptych::testing

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "tests/ops/cases.h"
#include "tests/ops/group_norm_cases.h"
#include "tests/ops/product_cases.h"
#include "tests/ops/quantized_cases.h"
#include "tests/ops/rms_norm_silu_cases.h"
#include "tests/ops/rope_attention_cases.h"
#include "tests/ops/row_chain_cases.h"
#include "tests/ops/tuned_cases.h"

using namespace diptych;
using namespace diptych::testing;

namespace {

const at::Device kGpu(at::kCUDA, 0);

}  // namespace

TEST_CASE("rms_norm on the GPU agrees with the kernel's reference") {
  check_rms_norm(kGpu, KernelPolicy::strict);
  check_rms_norm(kGpu, KernelPolicy::reference);
}
TEST_CASE("add_rms_norm_ on the GPU agrees with the kernel's reference") {
  check_add_rms_norm(kGpu, KernelPolicy::strict);
  check_add_rms_norm(kGpu, KernelPolicy::reference);
}
TEST_CASE("group_norm_silu on the GPU agrees with the kernel's reference") {
  check_group_norm(kGpu, KernelPolicy::strict);
  check_group_norm(kGpu, KernelPolicy::reference);
}
TEST_CASE("rms_norm_silu on the GPU agrees with the kernel's reference") {
  check_rms_norm_silu_pairs(kGpu, KernelPolicy::strict);
  check_rms_norm_silu(kGpu, KernelPolicy::strict);
  check_rms_norm_silu(kGpu, KernelPolicy::reference);
}
TEST_CASE("layer_norm and gated sums on the GPU agree with the kernel's reference") {
  for (const KernelPolicy policy : {KernelPolicy::strict, KernelPolicy::reference}) {
    check_layer_norm(kGpu, policy);
    check_add_layer_norm(kGpu, policy);
    check_layer_norm_rows_quantized(kGpu, policy);
  }
}
TEST_CASE("rms_norm_rope_ on the GPU agrees with the kernel's reference") {
  check_rms_norm_rope(kGpu, KernelPolicy::strict);
  check_rms_norm_rope(kGpu, KernelPolicy::reference);
}
TEST_CASE("silu_mul on the GPU agrees with the kernel's reference") {
  check_silu_mul(kGpu, KernelPolicy::strict);
  check_silu_mul(kGpu, KernelPolicy::reference);
}
TEST_CASE("qk_norm_rope on the GPU agrees with the kernel's reference") {
  check_qk_norm_rope(kGpu, KernelPolicy::strict);
  check_qk_norm_rope(kGpu, KernelPolicy::reference);
}
TEST_CASE("ops on the GPU give rows of two sets their own weights") {
  check_routes(kGpu, KernelPolicy::strict);
  check_routes(kGpu, KernelPolicy::reference);
}
TEST_CASE("qk_norm_rope on the GPU writes its slots and nothing else") {
  check_no_trespassing(kGpu, KernelPolicy::strict);
  check_no_trespassing(kGpu, KernelPolicy::reference);
}
TEST_CASE("linear of one row on the GPU agrees with the kernel's reference") {
  check_linear_row(kGpu, KernelPolicy::strict);
  check_linear_row(kGpu, KernelPolicy::reference);
}
TEST_CASE("quantised rows on the GPU are those worked out by hand, and the kernel's reference's") {
  for (const KernelPolicy policy : {KernelPolicy::strict, KernelPolicy::reference}) {
    check_quantized_by_hand(kGpu, policy);
    check_quantize_rows(kGpu, policy);
    check_gelu(kGpu, policy);
    check_quantize_attention(kGpu, policy);
  }
}
TEST_CASE("ops on the GPU hand on the rows that quantize_rows would make") {
  for (const KernelPolicy policy : {KernelPolicy::strict, KernelPolicy::reference}) {
    check_rows_made_quantized(kGpu, policy);
    check_product_of_quantized_rows(kGpu, policy);
  }
}
TEST_CASE("products with quantised weights on the GPU are near those of float64 and of the CPU") {
  for (const KernelPolicy policy : {KernelPolicy::strict, KernelPolicy::reference}) {
    check_quantized_linear(kGpu, policy, 16);
    check_quantized_like_cpu(kGpu, policy);
  }
}
TEST_CASE("products of the released model's sizes on the GPU are near those of float64") {
  check_quantized_linear(kGpu, KernelPolicy::strict, 1);
}
TEST_CASE("plain products of the released model's sizes on the GPU are near those of float64") {
  check_plain_products(kGpu, KernelPolicy::strict, 1);
}
TEST_CASE("products on the GPU take each row to the weight of its set") {
  check_routed_products(kGpu, KernelPolicy::strict);
  check_routed_products(kGpu, KernelPolicy::reference);
}

TEST_CASE("convolutions with phases on the GPU are those of the kernel's reference") {
  check_convolutions(kGpu);
  check_convolution_of_pairs(kGpu);
}

TEST_CASE("products in parts of 16 bits on the GPU are near those of float64") {
  check_split_products(kGpu);
}

TEST_CASE("the first half of a gated layer on the GPU is that of float64, by one kernel or two") {
  check_gated_products(kGpu, KernelPolicy::strict);
  check_gated_products(kGpu, KernelPolicy::reference);
}
TEST_CASE("fp8 products on the GPU refuse what they have no kernel for") {
  const auto weight = [](std::int64_t outputs, std::int64_t inputs) {
    return LinearOperand{
        at::ones({outputs, inputs}, at::TensorOptions(kGpu)).to(at::kFloat8_e4m3fn),
        at::ones({outputs}, at::TensorOptions(kGpu))};
  };
  const Tensor x = at::ones({17, 24}, at::TensorOptions(kGpu).dtype(at::kBFloat16));
  CHECK_THROWS_WITH_AS(linear(x, weight(16, 24), {}, KernelPolicy::automatic),
                       doctest::Contains("a weight of 16 x 24, expected multiples of 16"),
                       InputError);
  CHECK_THROWS_WITH_AS(linear(at::ones({17, 16}, at::TensorOptions(kGpu)), weight(16, 16), {},
                              KernelPolicy::automatic),
                       doctest::Contains("these are float32"), InputError);
}
TEST_CASE("every choice of a tuning gives the products and norms of the reference on the GPU") {
  check_tuned_products(kGpu, KernelPolicy::strict);
  check_tuned_norms(kGpu, KernelPolicy::strict);
  check_tuned_quantising(kGpu, KernelPolicy::strict);
}
TEST_CASE("decode_attention on the GPU agrees with the kernel's reference") {
  check_decode_attention(kGpu, KernelPolicy::strict);
  check_decode_attention(kGpu, KernelPolicy::reference);
}
TEST_CASE("rope_attention on the GPU agrees with the kernel's reference") {
  for (const KernelPolicy policy : {KernelPolicy::strict, KernelPolicy::reference}) {
    check_rope_attention(kGpu, policy);
    check_rope_attention_of_samples(kGpu, policy);
  }
}
TEST_CASE("steps of rope_attention on the GPU follow the number of keys") {
  check_rope_attention_of_steps(kGpu, KernelPolicy::strict);
}
TEST_CASE("the kernels give what Python recorded") {
  check_recorded(kGpu, KernelPolicy::strict);
  check_recorded(kGpu, KernelPolicy::automatic);
  check_recorded(kGpu, KernelPolicy::reference);
}

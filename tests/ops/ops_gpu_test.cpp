#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "tests/ops/cases.h"

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
TEST_CASE("decode_attention on the GPU agrees with the kernel's reference") {
  check_decode_attention(kGpu, KernelPolicy::strict);
  check_decode_attention(kGpu, KernelPolicy::reference);
}
TEST_CASE("the kernels give what Python recorded") {
  check_recorded(kGpu, KernelPolicy::strict);
  check_recorded(kGpu, KernelPolicy::automatic);
  check_recorded(kGpu, KernelPolicy::reference);
}

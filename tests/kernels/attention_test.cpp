#include <doctest/doctest.h>

#include "tests/kernels/attention_cases.h"

using namespace diptych;
using namespace diptych::testing;

namespace {

const Runner<kernels::HopperAttentionArgs> kReference = {at::kCPU, kernels::hopper_attention_ref};
const Runner<kernels::HopperFp8AttentionArgs> kFp8Reference = {at::kCPU,
                                                               kernels::hopper_fp8_attention_ref};

}  // namespace

TEST_CASE("the reference of hopper_attention attends as softmax in float64 does") {
  check_hopper_attention(kReference);
  check_hopper_attention_alone(kReference);
}

TEST_CASE("the reference of hopper_fp8_attention attends as softmax in float64 does") {
  check_hopper_fp8_attention(kFp8Reference);
  check_hopper_fp8_attention_alone(kFp8Reference);
}

#include <stdexcept>

#include <doctest/doctest.h>

#include "kernels/row_sets.h"
#include "tests/kernels/routed_cases.h"

using namespace diptych;
using namespace diptych::testing;

namespace {

template <typename Args>
Runner<Args> on_cpu(void (*reference)(const Args&)) {
  return {at::kCPU, reference};
}

std::string refusal(const kernels::RowSet& a, const kernels::RowSet& b, std::int64_t rows) {
  const char* reason = kernels::row_sets_unsupported(a, b, rows);
  return reason == nullptr ? "" : reason;
}

}  // namespace

TEST_CASE("the references send rows of two weight sets their way") {
  check_routed_rms_norm(on_cpu<kernels::RmsNormArgs>(kernels::rms_norm_ref));
  check_routed_qk_norm_rope(on_cpu<kernels::QkNormRopeArgs>(kernels::qk_norm_rope_ref));
}

TEST_CASE("the references quantise rows and take them back as ATen does") {
  check_quantised_rms_norm(on_cpu<kernels::RmsNormArgs>(kernels::rms_norm_ref));
  check_quantised_silu_mul(on_cpu<kernels::SiluMulArgs>(kernels::silu_mul_ref));
  check_silu_of_every_gate(on_cpu<kernels::SiluMulArgs>(kernels::silu_mul_ref));
  check_dequantize_rows(on_cpu<kernels::DequantizeRowsArgs>(kernels::dequantize_rows_ref));
}

TEST_CASE("row sets that cannot be are refused with the reason") {
  const std::int64_t index[] = {4, 0, 5};
  const kernels::RowSet none, list{index, 0, 3};
  CHECK(refusal(none, none, 0) == "");
  CHECK(refusal({nullptr, 0, 3}, {nullptr, 3, 2}, 5) == "");
  CHECK(refusal({nullptr, 2, 3}, {nullptr, 0, 2}, 5) == "");
  CHECK(refusal(list, {nullptr, 0, 2}, 5) == "");
  CHECK(refusal(none, none, -1) == "the number of rows is negative");
  CHECK(refusal({nullptr, 0, -1}, none, 5) == "the number of rows of a set is negative");
  CHECK(refusal(none, {nullptr, 0, 6}, 5) == "a set has more rows than there are");
  CHECK(refusal({nullptr, 3, 3}, none, 5) == "a range of rows ends outside the rows");
  CHECK(refusal({nullptr, -1, 3}, none, 5) == "a range of rows ends outside the rows");
  CHECK(refusal(list, {nullptr, 0, 3}, 5) == "the sets have more rows than there are");
  CHECK(refusal({nullptr, 0, 3}, {nullptr, 2, 2}, 5) == "the ranges of rows overlap");
  CHECK_THROWS_AS(kernels::for_rows(list, 5, [](std::int64_t) {}), std::out_of_range);
}

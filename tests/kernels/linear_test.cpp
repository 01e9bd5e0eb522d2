#include <doctest/doctest.h>

#include "tests/kernels/conv3d_cases.h"
#include "tests/kernels/linear_cases.h"

using namespace diptych;
using namespace diptych::testing;

TEST_CASE("the reference multiplies quantised weights as float64 does") {
  const Runner<kernels::LinearRowArgs> reference{at::kCPU, kernels::linear_row_ref};
  check_linear_row_quantised(reference);
  check_linear_row_alone(reference);
  check_linear_row_of_infinities(reference);
  check_linear_row_of_powers(reference);
}

TEST_CASE("the reference multiplies several rows of 16 bits as float64 does") {
  check_linear_row_plain({at::kCPU, kernels::linear_row_ref});
}

TEST_CASE("the reference multiplies rows and int8 weights as they are") {
  check_int8_linear({at::kCPU, kernels::int8_linear_ref});
}

TEST_CASE("the reference multiplies and activates the first half of a gated layer") {
  check_gated_linear({at::kCPU, kernels::gated_linear_ref});
}

TEST_CASE("the reference convolves clips as float64 does") {
  check_conv3d({at::kCPU, kernels::conv3d_ref});
}

TEST_CASE("the reference multiplies the rows of two weight sets where they lie") {
  check_routed_linear({at::kCPU, kernels::routed_linear_ref});
}

// linear_row on raw pointers: one body for the reference on the host and for the kernels on a GPU.
#pragma once

#include "kernels/linear_row/linear_row.h"
#include "tests/kernels/routed_cases.h"

namespace diptych::testing {

// Products of quantised weights, in every shape of the call, are those of float64, and there are
// canaries around the results.
void check_linear_row_quantised(const Runner<kernels::LinearRowArgs>& kernel);
// A row's products are the same bits whatever rows come with it.
void check_linear_row_alone(const Runner<kernels::LinearRowArgs>& kernel);

}  // namespace diptych::testing

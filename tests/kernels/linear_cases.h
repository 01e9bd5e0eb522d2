// linear_row, int8_linear, gated_linear and routed_linear on raw pointers: one body for the
// references on the host and for the kernels on a GPU.
#pragma once

#include "kernels/gated_linear/gated_linear.h"
#include "kernels/int8_linear/int8_linear.h"
#include "kernels/linear_row/linear_row.h"
#include "kernels/routed_linear/routed_linear.h"
#include "tests/kernels/routed_cases.h"

namespace diptych::testing {

// Products of quantised weights, in every shape of the call, are those of float64, and there are
// canaries around the results.
void check_linear_row_quantised(const Runner<kernels::LinearRowArgs>& kernel);
// A row's products are the same bits whatever rows come with it.
void check_linear_row_alone(const Runner<kernels::LinearRowArgs>& kernel);
// Of 2 to 16 rows of 16 bits by weights of 16 bits, likewise.
void check_linear_row_plain(const Runner<kernels::LinearRowArgs>& kernel);
// A row times a power of two gives exactly the products times that power. A row of zeros gives the
// bias, and one with a single large element does not lose those 2^-31 below it.
void check_linear_row_of_powers(const Runner<kernels::LinearRowArgs>& kernel);
void check_linear_row_of_infinities(const Runner<kernels::LinearRowArgs>& kernel);
// Products of int8 weights and any number of rows, with and without bias, are those of float64, the
// same in every shape of the call; the gaps and margins around stay as they were.
void check_int8_linear(const Runner<kernels::Int8LinearArgs>& kernel);
// silu(gate) * up is that of float64 but for its roundings; the gaps and margins around stay as
// they were.
void check_gated_linear(const Runner<kernels::GatedLinearArgs>& kernel);
// Every routed row is that of float64 with the weights of its set; rows in neither set, and the
// gaps and margins around, stay as they were.
void check_routed_linear(const Runner<kernels::RoutedLinearArgs>& kernel);

}  // namespace diptych::testing

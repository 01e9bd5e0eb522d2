// conv3d on raw pointers: one body for the reference on the host and for the kernel on a GPU.
#pragma once

#include "kernels/conv3d/conv3d.h"
#include "tests/kernels/routed_cases.h"

namespace diptych::testing {

// Convolutions of one and of several frames, with paddings, phases and shortcuts, are those of
// float64; what lies around the results stays as it was.
void check_conv3d(const Runner<kernels::Conv3dArgs>& kernel);
// Sizes whose last tiles are shared, on a GPU.
void check_conv3d_of_many_tiles(const Runner<kernels::Conv3dArgs>& kernel);

}  // namespace diptych::testing

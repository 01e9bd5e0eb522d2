// The kernels' name of a torch dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/types.h"

namespace diptych::testing {

using at::Tensor;

inline kernels::DType kernel_dtype(at::ScalarType dtype) {
  if (dtype == at::kFloat) return kernels::DType::f32;
  return dtype == at::kHalf ? kernels::DType::f16 : kernels::DType::bf16;
}

}  // namespace diptych::testing

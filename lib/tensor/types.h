// The tensor type of the project.
#pragma once

#include <ATen/core/Tensor.h>

namespace diptych {

using Tensor = at::Tensor;

}  // namespace diptych

// The tensors of a Wan transformer's checkpoint, by name and shape.
#pragma once

#include <vector>

#include "lib/models/wan/config.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

std::vector<TensorShape> wan_layout(const WanConfig& config);

}  // namespace diptych

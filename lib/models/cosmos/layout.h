// The tensors of a Cosmos-Predict2 transformer's checkpoint, by name and shape.
#pragma once

#include <vector>

#include "lib/models/cosmos/config.h"
#include "lib/tensor/tensor_names.h"

namespace diptych {

std::vector<TensorShape> cosmos_layout(const CosmosConfig& config);

}  // namespace diptych

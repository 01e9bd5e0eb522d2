// The tensors of a Wan transformer's checkpoint, by name and shape.
#pragma once

#include <vector>

#include "lib/models/wan/config.h"
#include "lib/tensor/tensor_names.h"
#include "lib/tensor/weights.h"

namespace diptych {

std::vector<TensorShape> wan_layout(const WanConfig& config);

// Checks the names and shapes of a transformer's weights; reads none. Beside its layout there may
// be the norm of queries for pictures, which some files hold and no model uses. Throws as
// Weights::check and Weights::require_all_read.
void check_wan_tensors(const Weights& weights, const WanConfig& config);

}  // namespace diptych

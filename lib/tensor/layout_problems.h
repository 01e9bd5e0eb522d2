// What is wrong with the tensors of a checkpoint, all of it: for whoever looks at a folder. A run
// ends at the first (Weights::check).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/tensor/tensor_names.h"
#include "lib/tensor/weights.h"

namespace diptych {

// A line for each tensor of `layout` that is missing or has another shape, and for each tensor that
// is not in it and not `unneeded`. Marks what it finds as read. Throws as Weights::check.
std::vector<std::string> layout_problems(const Weights& weights,
                                         std::span<const TensorShape> layout,
                                         std::string_view unneeded = {});

}  // namespace diptych

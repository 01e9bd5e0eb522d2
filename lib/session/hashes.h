// Names for the content of tensors.
#pragma once

#include <string>

#include "lib/tensor/types.h"

namespace diptych {

std::string tensor_hash(const Tensor& values);  // sha-256 of the bytes
std::string short_hash(const Tensor& values);   // 16 hex digits of that of the float32 values

}  // namespace diptych

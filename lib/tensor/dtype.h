// The dtype names of the safetensors format ("F32", "BF16", ...) and their torch types.
#pragma once

#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace diptych {

std::optional<at::ScalarType> dtype_from_name(std::string_view name);  // nullopt: not supported
std::string_view dtype_name(
    at::ScalarType dtype);  // TORCH_CHECK: a type the format has no name for

}  // namespace diptych

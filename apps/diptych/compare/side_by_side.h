// The pictures that `diptych compare` writes.
#pragma once

#include <filesystem>

#include "lib/tensor/types.h"

namespace diptych {

// uint8 [height, width, 3] of one size -> the two and their amplified difference, left to right.
Tensor side_by_side(const Tensor& actual, const Tensor& expected);

// In the format of the name, without texts. Throws as AtomicFile.
void write_plain_picture(const std::filesystem::path& path, const Tensor& rgb);

}  // namespace diptych

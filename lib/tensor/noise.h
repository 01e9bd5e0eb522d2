// Random numbers equal to the official Python code's.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

#include "lib/tensor/types.h"

namespace diptych {

// The generator that torch.manual_seed(seed) leaves behind: CPU mt19937.
at::Generator cpu_generator(std::uint64_t seed);

// torch.randn(shape) in float32 on the CPU from that generator; advances it as Python would.
Tensor randn(at::IntArrayRef shape, at::Generator& generator);

}  // namespace diptych

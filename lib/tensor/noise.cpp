#include "lib/tensor/noise.h"

#include <ATen/CPUGeneratorImpl.h>

namespace diptych {

at::Generator cpu_generator(std::uint64_t seed) {
  return at::detail::createCPUGenerator(seed);
}

Tensor randn(at::IntArrayRef shape, at::Generator& generator) {
  return at::randn(shape, generator, at::TensorOptions().dtype(at::kFloat).device(at::kCPU));
}

}  // namespace diptych

// TF32, the precision of tensor cores for float32: operands with 10 bits of fraction, sums in
// float32. Off everywhere else (gpu::initialise).
#pragma once

#include "lib/tensor/types.h"

namespace diptych {

// While one lives, convolutions and matrix products of float32 tensors on CUDA are in TF32. It
// changes libtorch's context, which the whole process has in common: no other thread may compute in
// float32 meanwhile.
class Tf32Scope {
 public:
  // `on` false: changes nothing.
  explicit Tf32Scope(bool on);
  ~Tf32Scope();
  Tf32Scope(const Tf32Scope&) = delete;
  Tf32Scope& operator=(const Tf32Scope&) = delete;

 private:
  bool on_, convolutions_, products_;  // as they were
};

// To the nearest value that TF32 holds, where tensor cores cut off what they are given. Magnitudes
// below 2^114.
Tensor round_to_tf32(const Tensor& x);

}  // namespace diptych

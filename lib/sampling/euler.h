// The stepper of flow matching: one for steps that are launched by hand and those of a CUDA graph.
#pragma once

#include "lib/tensor/types.h"

namespace diptych {

// x -= v * size, in place. x: float32 [rows, columns]; v: the velocity, which points from data to
// noise, in the model's dtype; size: float32 [1] on the same device. The product is rounded to v's
// dtype before it is subtracted, as the official code does (ByteDance-Seed/Bagel @056b5fd,
// modeling/bagel/bagel.py, generate_image). Launches and does not wait.
void euler_step_(const Tensor& x, const Tensor& v, const Tensor& size);

}  // namespace diptych

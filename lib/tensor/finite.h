// Results with NaN or infinity in them, and the weights that such results come from.
#pragma once

#include "lib/base/error.h"
#include "lib/tensor/types.h"

namespace diptych {

// A result that holds NaN or infinity. Who runs the model looks through its weights and throws
// BadWeights where they are the cause.
class NotFinite : public RunError {
 public:
  using RunError::RunError;
};

// Weights that hold NaN or infinity: a bad file, with which no request can succeed. Exit code 2.
class BadWeights : public InputError {
 public:
  using InputError::InputError;
};

// Of any floating-point dtype, on the CPU. Goes in pieces, and stops at a signal (Interrupted).
bool all_finite(const Tensor& values);

}  // namespace diptych

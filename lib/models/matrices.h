// The weights of linear layers as they come from a checkpoint: quantised on the way where that is
// asked for, and side by side in one buffer where they are to be copied to a device at once.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/ops/linear_operand.h"
#include "lib/tensor/weights.h"

namespace diptych {

// Whether weights are quantised as they are read, and by what.
struct MatrixQuantization {
  Quantization kind = Quantization::none;
  KernelPolicy kernels = KernelPolicy::automatic;
};

// How weights lie in memory.
struct MatrixFormat {
  at::ScalarType dtype = at::kBFloat16;  // of the run
  Quantization quantization = Quantization::none;
};

using MatrixShape = std::array<std::int64_t, 2>;  // outputs, inputs

// What these take in one buffer. Each part is aligned like an allocation of its own.
std::int64_t matrix_bytes(std::span<const MatrixShape> shapes, const MatrixFormat& format);
// Views of the buffer, uint8 [matrix_bytes()], in this order.
std::vector<LinearOperand> matrices_in(const Tensor& buffer, std::span<const MatrixShape> shapes,
                                       const MatrixFormat& format);

// "fp8: the matrices take 12.0 MiB instead of 24.0; the rest stays as it is": what was quantised,
// what that saves, and what was not. `bytes`: of these matrices in a format.
std::string quantization_note(const MatrixFormat& format, std::string_view matrices,
                              const std::function<std::int64_t(const MatrixFormat&)>& bytes,
                              std::string_view rest);

// Reads a tensor into the rows of a matrix from `row` on. The matrix may be quantised and on
// another device than the weights. Of a tensor that is quantised there is one plain copy at a time.
// Throws as Weights::get.
void read_matrix_rows(const Weights& weights, const std::string& name, at::IntArrayRef shape,
                      const LinearOperand& into, std::int64_t row,
                      const MatrixQuantization& quantization);

}  // namespace diptych

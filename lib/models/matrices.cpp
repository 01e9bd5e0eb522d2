#include "lib/models/matrices.h"

#include <fmt/format.h>

namespace diptych {
namespace {

// Up to the next boundary of 512 bytes, where torch's allocator would put a tensor.
std::int64_t aligned(std::int64_t bytes) {
  return (bytes + 511) / 512 * 512;
}

std::int64_t value_bytes(const MatrixShape& shape, const MatrixFormat& format) {
  const at::ScalarType stored = stored_dtype(format.quantization, format.dtype);
  return shape[0] * shape[1] * static_cast<std::int64_t>(c10::elementSize(stored));
}

std::int64_t scale_bytes(const MatrixShape& shape, const MatrixFormat& format) {
  constexpr std::int64_t kFloat = 4;
  return format.quantization == Quantization::none ? 0 : shape[0] * kFloat;
}

// Quantises where the weights were brought to: on the GPU, if there is one. The matrix may be
// elsewhere.
void quantize_into(const Tensor& plain, const LinearOperand& matrix, std::int64_t row,
                   const MatrixQuantization& quantization) {
  const LinearOperand into{matrix.values.narrow(0, row, plain.size(0)),
                           matrix.scales.narrow(0, row, plain.size(0))};
  if (plain.device() == into.values.device())
    return quantize_rows(plain, into, quantization.kernels);
  const auto here = LinearOperand::empty(plain.sizes(), plain.options(), quantization.kind);
  quantize_rows(plain, here, quantization.kernels);
  into.values.copy_(here.values);
  into.scales.copy_(here.scales);
}

}  // namespace

std::int64_t matrix_bytes(std::span<const MatrixShape> shapes, const MatrixFormat& format) {
  std::int64_t bytes = 0;
  for (const MatrixShape& shape : shapes)
    bytes += aligned(value_bytes(shape, format)) + aligned(scale_bytes(shape, format));
  return bytes;
}

std::string quantization_note(const MatrixFormat& format, std::string_view matrices,
                              const std::function<std::int64_t(const MatrixFormat&)>& bytes,
                              std::string_view rest) {
  constexpr double kMebi = 1 << 20;
  const auto mebi = [&](Quantization kind) {
    return static_cast<double>(bytes({format.dtype, kind})) / kMebi;
  };
  return fmt::format("{}: {} take {:.1f} MiB instead of {:.1f}; {}", name_of(format.quantization),
                     matrices, mebi(format.quantization), mebi(Quantization::none), rest);
}

std::vector<LinearOperand> matrices_in(const Tensor& buffer, std::span<const MatrixShape> shapes,
                                       const MatrixFormat& format) {
  std::int64_t begin = 0;
  const auto take = [&](std::int64_t bytes, at::ScalarType dtype) {
    const Tensor part = buffer.narrow(0, begin, bytes).view(dtype);
    begin += aligned(bytes);
    return part;
  };
  std::vector<LinearOperand> matrices;
  for (const MatrixShape& shape : shapes) {
    LinearOperand matrix;
    matrix.values =
        take(value_bytes(shape, format), stored_dtype(format.quantization, format.dtype))
            .view(shape);
    if (format.quantization != Quantization::none)
      matrix.scales = take(scale_bytes(shape, format), at::kFloat);
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

void read_matrix_rows(const Weights& weights, const std::string& name, at::IntArrayRef shape,
                      const LinearOperand& into, std::int64_t row,
                      const MatrixQuantization& quantization) {
  if (quantization.kind == Quantization::none)
    return weights.read(name, shape, into.values.narrow(0, row, shape.front()));
  // Rounded once: what is computed in float32 is quantised from there.
  const Weights exact = weights.is_computed(name) ? weights.as(at::kFloat) : weights;
  exact.get_then(name, shape, [into, row, quantization](const Tensor& plain) {
    quantize_into(plain, into, row, quantization);
  });
}

}  // namespace diptych

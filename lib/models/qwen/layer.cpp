#include "lib/models/qwen/layer.h"

#include <fmt/format.h>

namespace diptych {
namespace {

// Of kQwenMatrices.
std::array<std::array<std::int64_t, 2>, 4> matrix_shapes(const QwenConfig& c) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  return {{{c.qkv_width(), hidden}, {hidden, c.q_width()}, {2 * inner, hidden}, {hidden, inner}}};
}

// Up to the next boundary of 512 bytes, where torch's allocator would put a tensor.
std::int64_t aligned(std::int64_t bytes) {
  return (bytes + 511) / 512 * 512;
}

std::int64_t value_bytes(const std::array<std::int64_t, 2>& shape, const MatrixFormat& format) {
  const at::ScalarType stored = stored_dtype(format.quantization, format.dtype);
  return shape[0] * shape[1] * static_cast<std::int64_t>(c10::elementSize(stored));
}

std::int64_t scale_bytes(const std::array<std::int64_t, 2>& shape, const MatrixFormat& format) {
  constexpr std::int64_t kFloat = 4;
  return format.quantization == Quantization::none ? 0 : shape[0] * kFloat;
}

Tensor rows_of(const Tensor& matrix, std::int64_t row, std::int64_t count) {
  return matrix.narrow(0, row, count);
}

// Quantises where the weights were brought to: on the GPU, if there is one. The matrix may be
// elsewhere.
void quantize_into(const Tensor& plain, const LinearOperand& matrix, std::int64_t row,
                   const QwenQuantization& quantization) {
  const LinearOperand into{rows_of(matrix.values, row, plain.size(0)),
                           rows_of(matrix.scales, row, plain.size(0))};
  if (plain.device() == into.values.device())
    return quantize_rows(plain, into, quantization.kernels);
  const auto here = LinearOperand::empty(plain.sizes(), plain.options(), quantization.kind);
  quantize_rows(plain, here, quantization.kernels);
  into.values.copy_(here.values);
  into.scales.copy_(here.scales);
}

// Reads a tensor into the rows of a matrix from `row` on. The matrix may be quantised and on
// another device.
void read_rows(const Weights& weights, const std::string& name, at::IntArrayRef shape,
               const LinearOperand& into, std::int64_t row, const QwenQuantization& quantization) {
  if (quantization.kind == Quantization::none) {
    return weights.read(name, shape, rows_of(into.values, row, shape.front()));
  }
  weights.get_then(name, shape, [into, row, quantization](const Tensor& plain) {
    quantize_into(plain, into, row, quantization);
  });
}

// Where a layer's tensors are, and how they are called there.
struct Checkpoint {
  Weights attn, mlp;
  std::string_view suffix;
  std::string named(std::string_view name, std::string_view leaf) const {
    return fmt::format("{}{}.{}", name, suffix, leaf);
  }
};

// The parts of qkv_proj and their rows.
std::array<std::pair<const char*, std::int64_t>, 3> qkv_parts(const QwenConfig& c) {
  return {{{"q_proj", c.q_width()}, {"k_proj", c.kv_width()}, {"v_proj", c.kv_width()}}};
}

// Each projection by itself, but for those that are one tensor of the checkpoint as it is.
void allocate_matrices(QwenLayer& into, const QwenConfig& c, const at::TensorOptions& options,
                       Quantization kind) {
  const auto shapes = matrix_shapes(c);
  for (std::size_t i = 0; i < kQwenMatrices.size(); ++i) {
    const bool is_one_tensor =
        kQwenMatrices[i] == &QwenLayer::o_proj || kQwenMatrices[i] == &QwenLayer::down_proj;
    if (is_one_tensor && kind == Quantization::none) continue;
    into.*kQwenMatrices[i] = LinearOperand::empty(shapes[i], options, kind);
  }
}

void read_matrices(QwenLayer& into, const Checkpoint& from, const QwenConfig& c,
                   const QwenQuantization& quantization) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const auto read = [&](const Weights& weights, const std::string& name, at::IntArrayRef shape,
                        LinearOperand& matrix) {
    if (matrix.values.defined()) return read_rows(weights, name, shape, matrix, 0, quantization);
    matrix.values = weights.get(name, shape);  // on the CPU a view of the file
  };
  read(from.attn, from.named("o_proj", "weight"), {hidden, c.q_width()}, into.o_proj);
  read(from.mlp, "down_proj.weight", {hidden, inner}, into.down_proj);
  std::int64_t row = 0;
  for (const auto& [name, rows] : qkv_parts(c)) {
    read_rows(from.attn, from.named(name, "weight"), {rows, hidden}, into.qkv_proj, row,
              quantization);
    row += rows;
  }
  read_rows(from.mlp, "gate_proj.weight", {inner, hidden}, into.gate_up_proj, 0, quantization);
  read_rows(from.mlp, "up_proj.weight", {inner, hidden}, into.gate_up_proj, inner, quantization);
}

Tensor read_qkv_bias(const Checkpoint& from, const QwenConfig& c,
                     const at::TensorOptions& options) {
  const Tensor bias = at::empty({c.qkv_width()}, options);
  std::int64_t row = 0;
  for (const auto& [name, rows] : qkv_parts(c)) {
    from.attn.read(from.named(name, "bias"), {rows}, bias.narrow(0, row, rows));
    row += rows;
  }
  return bias;
}

}  // namespace

std::int64_t QwenLayer::matrix_bytes(const QwenConfig& config, const MatrixFormat& format) {
  std::int64_t bytes = 0;
  for (const auto& shape : matrix_shapes(config)) {
    bytes += aligned(value_bytes(shape, format)) + aligned(scale_bytes(shape, format));
  }
  return bytes;
}

void QwenLayer::use_matrices(const Tensor& buffer, const QwenConfig& config,
                             const MatrixFormat& format) {
  const auto shapes = matrix_shapes(config);
  std::int64_t begin = 0;
  const auto take = [&](std::int64_t bytes, at::ScalarType dtype) {
    const Tensor part = buffer.narrow(0, begin, bytes).view(dtype);
    begin += aligned(bytes);
    return part;
  };
  for (std::size_t i = 0; i < kQwenMatrices.size(); ++i) {
    LinearOperand& matrix = this->*kQwenMatrices[i];
    matrix.values =
        take(value_bytes(shapes[i], format), stored_dtype(format.quantization, format.dtype))
            .view(shapes[i]);
    matrix.scales.reset();
    if (format.quantization != Quantization::none)
      matrix.scales = take(scale_bytes(shapes[i], format), at::kFloat);
  }
}

QwenLayer QwenLayer::load(const Weights& layer, const QwenConfig& c, std::string_view suffix,
                          const QwenQuantization& quantization, const Tensor& matrices) {
  const Checkpoint from{layer.scope("self_attn"), layer.scope(fmt::format("mlp{}", suffix)),
                        suffix};
  QwenLayer into;
  if (matrices.defined()) {
    const auto dtype = c10::typeMetaToScalarType(layer.options().dtype());
    into.use_matrices(matrices, c, {dtype, quantization.kind});
  } else {
    allocate_matrices(into, c, layer.options(), quantization.kind);
  }
  read_matrices(into, from, c, quantization);
  if (c.attention_bias) into.qkv_bias = read_qkv_bias(from, c, layer.options());
  if (c.qk_norm) {
    into.q_norm = from.attn.get(from.named("q_norm", "weight"), {c.head_dim});
    into.k_norm = from.attn.get(from.named("k_norm", "weight"), {c.head_dim});
  }
  into.input_layernorm = layer.get(from.named("input_layernorm", "weight"), {c.hidden_size});
  into.post_attention_layernorm =
      layer.get(from.named("post_attention_layernorm", "weight"), {c.hidden_size});
  return into;
}

}  // namespace diptych

#include "lib/models/qwen/layer.h"

#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace diptych {
namespace {

// Of kQwenMatrices.
std::array<MatrixShape, 4> matrix_shapes(const QwenConfig& c) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  return {{{c.qkv_width(), hidden}, {hidden, c.q_width()}, {2 * inner, hidden}, {hidden, inner}}};
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
                   const MatrixQuantization& quantization) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  struct Part {  // a tensor of the checkpoint, and its rows in the matrix
    const Weights& weights;
    std::string name;
    std::array<std::int64_t, 2> shape;
    LinearOperand& matrix;
    std::int64_t row = 0;
  };
  std::vector<Part> parts = {
      {from.attn, from.named("o_proj", "weight"), {hidden, c.q_width()}, into.o_proj},
      {from.mlp, "down_proj.weight", {hidden, inner}, into.down_proj}};
  std::int64_t row = 0;
  for (const auto& [name, rows] : qkv_parts(c)) {
    parts.push_back({from.attn, from.named(name, "weight"), {rows, hidden}, into.qkv_proj, row});
    row += rows;
  }
  parts.push_back({from.mlp, "gate_proj.weight", {inner, hidden}, into.gate_up_proj});
  parts.push_back({from.mlp, "up_proj.weight", {inner, hidden}, into.gate_up_proj, inner});
  for (const Part& part : parts) {
    if (part.matrix.values.defined()) {
      read_matrix_rows(part.weights, part.name, part.shape, part.matrix, part.row, quantization);
    } else {
      part.matrix.values =
          part.weights.get(part.name, part.shape);  // on the CPU a view of the file
    }
  }
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
  return diptych::matrix_bytes(matrix_shapes(config), format);
}

void QwenLayer::use_matrices(const Tensor& buffer, const QwenConfig& config,
                             const MatrixFormat& format) {
  const std::vector<LinearOperand> matrices = matrices_in(buffer, matrix_shapes(config), format);
  for (std::size_t i = 0; i < kQwenMatrices.size(); ++i) this->*kQwenMatrices[i] = matrices[i];
}

QwenLayer QwenLayer::load(const Weights& layer, const QwenConfig& c, std::string_view suffix,
                          const MatrixQuantization& quantization, const Tensor& matrices) {
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

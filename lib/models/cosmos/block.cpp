#include "lib/models/cosmos/block.h"

namespace diptych {
namespace {

// A matrix of the checkpoint, or several that are packed, and where it is put.
struct Matrix {
  LinearOperand CosmosBlock::*into;
  std::vector<const char*> modules;  // below the block
  MatrixShape shape;
};

// In the order in which they lie in a buffer.
std::vector<Matrix> matrices_of(BlockPart part, const CosmosConfig& c) {
  using B = CosmosBlock;
  const std::int64_t d = c.width(), inner = c.inner();
  if (part == BlockPart::context)
    return {{&B::attn2_kv, {"attn2.to_k", "attn2.to_v"}, {2 * d, c.text_embed_dim}}};
  return {{&B::attn1_qkv, {"attn1.to_q", "attn1.to_k", "attn1.to_v"}, {3 * d, d}},
          {&B::attn1_out, {"attn1.to_out.0"}, {d, d}},
          {&B::attn2_q, {"attn2.to_q"}, {d, d}},
          {&B::attn2_out, {"attn2.to_out.0"}, {d, d}},
          {&B::ff_in, {"ff.net.0.proj"}, {inner, d}},
          {&B::ff_out, {"ff.net.2"}, {d, inner}}};
}

std::vector<MatrixShape> shapes_of(BlockPart part, const CosmosConfig& c) {
  std::vector<MatrixShape> shapes;
  for (const Matrix& matrix : matrices_of(part, c)) shapes.push_back(matrix.shape);
  return shapes;
}

// A matrix that has no place yet gets one of its own, but for one that is a single tensor of the
// checkpoint as it is: on the CPU that is a view of the file.
void read_matrix(CosmosBlock& block, const Matrix& matrix, const Weights& weights,
                 const MatrixQuantization& quantization) {
  LinearOperand& into = block.*matrix.into;
  const auto [outputs, inputs] = matrix.shape;
  const auto parts = static_cast<std::int64_t>(matrix.modules.size());
  if (parts == 1 && quantization.kind == Quantization::none && !into.values.defined()) {
    into.values = weights.get(std::string(matrix.modules.front()) + ".weight", matrix.shape);
    return;
  }
  if (!into.values.defined())
    into = LinearOperand::empty(matrix.shape, weights.options(), quantization.kind);
  const std::int64_t count = outputs / parts;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::string name = std::string(matrix.modules[static_cast<std::size_t>(i)]) + ".weight";
    read_matrix_rows(weights, name, {count, inputs}, into, i * count, quantization);
  }
}

}  // namespace

std::int64_t CosmosBlock::matrix_bytes(BlockPart part, const CosmosConfig& config,
                                       const MatrixFormat& format) {
  return diptych::matrix_bytes(shapes_of(part, config), format);
}

void CosmosBlock::use_matrices(BlockPart part, const Tensor& buffer, const CosmosConfig& config,
                               const MatrixFormat& format) {
  const std::vector<LinearOperand> views = matrices_in(buffer, shapes_of(part, config), format);
  const std::vector<Matrix> matrices = matrices_of(part, config);
  for (std::size_t i = 0; i < views.size(); ++i) this->*matrices[i].into = views[i];
}

void CosmosBlock::take_matrices(BlockPart part, const CosmosBlock& from) {
  if (part == BlockPart::context) {
    attn2_kv = from.attn2_kv;
    return;
  }
  using B = CosmosBlock;
  for (const auto matrix :
       {&B::attn1_qkv, &B::attn1_out, &B::attn2_q, &B::attn2_out, &B::ff_in, &B::ff_out}) {
    this->*matrix = from.*matrix;
  }
}

CosmosBlock CosmosBlock::load(const Weights& weights, const CosmosConfig& c,
                              const MatrixQuantization& quantization, const BlockBuffers& buffers) {
  const MatrixFormat format = {c10::typeMetaToScalarType(weights.options().dtype()),
                               quantization.kind};
  CosmosBlock block;
  for (const auto& [part, buffer] :
       {std::pair{BlockPart::step, buffers.step}, std::pair{BlockPart::context, buffers.context}}) {
    if (buffer.defined()) block.use_matrices(part, buffer, c, format);
    for (const Matrix& matrix : matrices_of(part, c))
      read_matrix(block, matrix, weights, quantization);
  }
  const std::int64_t d = c.attention_head_dim;
  block.attn1_norm_q = weights.get("attn1.norm_q.weight", {d});
  block.attn1_norm_k = weights.get("attn1.norm_k.weight", {d});
  block.attn2_norm_q = weights.get("attn2.norm_q.weight", {d});
  block.attn2_norm_k = weights.get("attn2.norm_k.weight", {d});
  return block;
}

}  // namespace diptych

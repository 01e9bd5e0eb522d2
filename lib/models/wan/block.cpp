#include "lib/models/wan/block.h"

namespace diptych {
namespace {

using Matrix = LinearOperand WanBlock::*;

// A linear layer of the checkpoint, or several that are packed: where its weight and bias are put.
struct Linear {
  BlockPart part;
  std::vector<const char*> modules;  // below the block
  Matrix weight;
  Tensor WanBlock::*bias;
  MatrixShape shape;
};

// Of each part in the order in which they lie in a buffer.
std::vector<Linear> linears_of(const WanConfig& c) {
  using B = WanBlock;
  constexpr BlockPart kStep = BlockPart::step, kContext = BlockPart::context;
  const std::int64_t d = c.width(), inner = c.ffn_dim;
  std::vector<Linear> linears = {
      {kStep,
       {"attn1.to_q", "attn1.to_k", "attn1.to_v"},
       &B::attn1_qkv,
       &B::attn1_qkv_bias,
       {3 * d, d}},
      {kStep, {"attn1.to_out.0"}, &B::attn1_out, &B::attn1_out_bias, {d, d}},
      {kStep, {"attn2.to_q"}, &B::attn2_q, &B::attn2_q_bias, {d, d}},
      {kStep, {"attn2.to_out.0"}, &B::attn2_out, &B::attn2_out_bias, {d, d}},
      {kStep, {"ffn.net.0.proj"}, &B::ffn_in, &B::ffn_in_bias, {inner, d}},
      {kStep, {"ffn.net.2"}, &B::ffn_out, &B::ffn_out_bias, {d, inner}},
      {kContext, {"attn2.to_k", "attn2.to_v"}, &B::attn2_kv, &B::attn2_kv_bias, {2 * d, d}}};
  if (c.image_dim) {
    linears.push_back({kContext,
                       {"attn2.add_k_proj", "attn2.add_v_proj"},
                       &B::image_kv,
                       &B::image_kv_bias,
                       {2 * d, d}});
  }
  return linears;
}

std::vector<Linear> linears_of(BlockPart part, const WanConfig& c) {
  std::vector<Linear> linears = linears_of(c);
  std::erase_if(linears, [part](const Linear& linear) { return linear.part != part; });
  return linears;
}

std::vector<MatrixShape> shapes_of(BlockPart part, const WanConfig& c) {
  std::vector<MatrixShape> shapes;
  for (const Linear& linear : linears_of(part, c)) shapes.push_back(linear.shape);
  return shapes;
}

// A matrix that has no place yet gets one of its own, but for one that is a single tensor of the
// checkpoint as it is: on the CPU that is a view of the file.
void read_linear(WanBlock& into, const Linear& linear, const Weights& weights,
                 const MatrixQuantization& quantization) {
  LinearOperand& matrix = into.*linear.weight;
  const auto [outputs, inputs] = linear.shape;
  const Tensor bias = at::empty({outputs}, weights.options());
  into.*linear.bias = bias;
  const auto parts = static_cast<std::int64_t>(linear.modules.size());
  const bool as_it_is =
      parts == 1 && quantization.kind == Quantization::none && !matrix.values.defined();
  if (!as_it_is && !matrix.values.defined())
    matrix = LinearOperand::empty(linear.shape, weights.options(), quantization.kind);
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::string module = linear.modules[static_cast<std::size_t>(i)];
    const std::int64_t count = outputs / parts, row = i * count;
    weights.read(module + ".bias", {count}, bias.narrow(0, row, count));
    if (as_it_is) {
      matrix.values = weights.get(module + ".weight", linear.shape);
    } else {
      read_matrix_rows(weights, module + ".weight", {count, inputs}, matrix, row, quantization);
    }
  }
}

void read_norms(WanBlock& into, const Weights& block, const WanConfig& c) {
  const std::int64_t width = c.width();
  const Weights attn1 = block.scope("attn1"), attn2 = block.scope("attn2");
  into.attn1_norm_q = attn1.get("norm_q.weight", {width});
  into.attn1_norm_k = attn1.get("norm_k.weight", {width});
  into.attn2_norm_q = attn2.get("norm_q.weight", {width});
  into.attn2_norm_k = attn2.get("norm_k.weight", {width});
  if (c.image_dim) into.image_norm_k = attn2.get("norm_added_k.weight", {width});
  // Released files may hold a norm that nothing uses.
  constexpr const char* kUnused = "norm_added_q.weight";
  if (!attn2.is_dummy() && attn2.contains(kUnused)) attn2.check(kUnused, attn2.shape(kUnused));
  if (!c.cross_attn_norm) return;
  const Weights norm2 = block.scope("norm2").as(at::kFloat);
  into.norm2_weight = norm2.get("weight", {width});
  into.norm2_bias = norm2.get("bias", {width});
}

}  // namespace

std::int64_t WanBlock::matrix_bytes(BlockPart part, const WanConfig& config,
                                    const MatrixFormat& format) {
  return diptych::matrix_bytes(shapes_of(part, config), format);
}

void WanBlock::use_matrices(BlockPart part, const Tensor& buffer, const WanConfig& config,
                            const MatrixFormat& format) {
  const std::vector<LinearOperand> views = matrices_in(buffer, shapes_of(part, config), format);
  const std::vector<Linear> linears = linears_of(part, config);
  for (std::size_t i = 0; i < views.size(); ++i) this->*linears[i].weight = views[i];
}

void WanBlock::take_matrices(BlockPart part, const WanBlock& from) {
  if (part == BlockPart::context) {
    attn2_kv = from.attn2_kv;
    image_kv = from.image_kv;
    return;
  }
  for (const Matrix matrix : {&WanBlock::attn1_qkv, &WanBlock::attn1_out, &WanBlock::attn2_q,
                              &WanBlock::attn2_out, &WanBlock::ffn_in, &WanBlock::ffn_out})
    this->*matrix = from.*matrix;
}

WanBlock WanBlock::load(const Weights& block, const WanConfig& c,
                        const MatrixQuantization& quantization, const BlockBuffers& buffers) {
  const auto dtype = c10::typeMetaToScalarType(block.options().dtype());
  WanBlock into;
  const MatrixFormat format = {dtype, quantization.kind};
  if (buffers.step.defined()) into.use_matrices(BlockPart::step, buffers.step, c, format);
  if (buffers.context.defined()) into.use_matrices(BlockPart::context, buffers.context, c, format);
  for (const Linear& linear : linears_of(c)) read_linear(into, linear, block, quantization);
  read_norms(into, block, c);
  return into;
}

}  // namespace diptych

#include "lib/models/qwen_mot/layers.h"

#include <fmt/format.h>

#include "lib/models/qwen_mot/expert_stream.h"

namespace diptych {
namespace {

using Matrices = std::array<LinearOperand MotExpert::*, 4>;
constexpr Matrices kMatrices = {&MotExpert::qkv_proj, &MotExpert::o_proj, &MotExpert::gate_up_proj,
                                &MotExpert::down_proj};

std::array<std::array<std::int64_t, 2>, 4> matrix_shapes(const Qwen2Config& c) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim();
  return {{{hidden + 2 * kv, hidden}, {hidden, hidden}, {2 * inner, hidden}, {hidden, inner}}};
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

// Reads a tensor into the rows of a matrix from `row` on, whatever the matrix holds and wherever it
// is. Quantised where the weights are brought to: on the device, if there is one.
void read_rows(const Weights& weights, const std::string& name, at::IntArrayRef shape,
               const LinearOperand& into, std::int64_t row, const MotQuantization& quantization) {
  const auto part = [&](const Tensor& t) { return t.narrow(0, row, shape.front()); };
  if (quantization.kind == Quantization::none) {
    return weights.read(name, shape, part(into.values));
  }
  const Tensor plain = weights.get(name, shape);
  LinearOperand rows{part(into.values), part(into.scales)};
  if (plain.device() != into.values.device())
    rows = LinearOperand::empty(shape, plain.options(), quantization.kind);
  quantize_rows(plain, rows, quantization.kernels);
  if (rows.values.device() != into.values.device()) {
    part(into.values).copy_(rows.values);
    part(into.scales).copy_(rows.scales);
  }
}

// Of `layers` things `resident` stay; the others are spread evenly.
bool is_streamed(std::int64_t layer, std::int64_t layers, std::int64_t resident) {
  const std::int64_t streamed = layers - std::clamp<std::int64_t>(resident, 0, layers);
  return (layer + 1) * streamed / layers > layer * streamed / layers;
}

}  // namespace

std::int64_t MotExpert::matrix_bytes(const Qwen2Config& config, const MatrixFormat& format) {
  std::int64_t bytes = 0;
  for (const auto& shape : matrix_shapes(config)) {
    bytes += aligned(value_bytes(shape, format)) + aligned(scale_bytes(shape, format));
  }
  return bytes;
}

void MotExpert::use_matrices(const Tensor& buffer, const Qwen2Config& config,
                             const MatrixFormat& format) {
  const auto shapes = matrix_shapes(config);
  std::int64_t begin = 0;
  const auto take = [&](std::int64_t bytes, at::ScalarType dtype) {
    const Tensor part = buffer.narrow(0, begin, bytes).view(dtype);
    begin += aligned(bytes);
    return part;
  };
  for (std::size_t i = 0; i < kMatrices.size(); ++i) {
    LinearOperand& matrix = this->*kMatrices[i];
    matrix.values =
        take(value_bytes(shapes[i], format), stored_dtype(format.quantization, format.dtype))
            .view(shapes[i]);
    matrix.scales.reset();
    if (format.quantization != Quantization::none)
      matrix.scales = take(scale_bytes(shapes[i], format), at::kFloat);
  }
}

MotExpert MotExpert::load(const Weights& layer, const Qwen2Config& c, std::string_view suffix,
                          const MotQuantization& quantization, const Tensor& matrices) {
  const auto named = [&](std::string_view name, std::string_view leaf) {
    return fmt::format("{}{}.{}", name, suffix, leaf);
  };
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size, dim = c.head_dim();
  const std::int64_t kv = c.num_key_value_heads * dim;
  const Weights attn = layer.scope("self_attn");
  const Weights mlp = layer.scope(fmt::format("mlp{}", suffix));
  MotExpert e;
  const bool as_they_are = !matrices.defined() && quantization.kind == Quantization::none;
  const auto shapes = matrix_shapes(c);
  if (matrices.defined()) {
    const auto dtype = c10::typeMetaToScalarType(layer.options().dtype());
    e.use_matrices(matrices, c, {dtype, quantization.kind});
  } else {
    for (std::size_t i = 0; i < kMatrices.size(); ++i) {
      const bool is_one_tensor =
          kMatrices[i] == &MotExpert::o_proj || kMatrices[i] == &MotExpert::down_proj;
      if (as_they_are && is_one_tensor) continue;  // on the CPU a view of the file
      e.*kMatrices[i] = LinearOperand::empty(shapes[i], layer.options(), quantization.kind);
    }
  }
  if (as_they_are) {
    e.o_proj.values = attn.get(named("o_proj", "weight"), {hidden, hidden});
    e.down_proj.values = mlp.get("down_proj.weight", {hidden, inner});
  } else {
    read_rows(attn, named("o_proj", "weight"), {hidden, hidden}, e.o_proj, 0, quantization);
    read_rows(mlp, "down_proj.weight", {hidden, inner}, e.down_proj, 0, quantization);
  }
  e.qkv_bias = at::empty({hidden + 2 * kv}, layer.options());
  std::int64_t row = 0;
  for (const auto& [name, rows] :
       {std::pair{"q_proj", hidden}, std::pair{"k_proj", kv}, std::pair{"v_proj", kv}}) {
    read_rows(attn, named(name, "weight"), {rows, hidden}, e.qkv_proj, row, quantization);
    attn.read(named(name, "bias"), {rows}, e.qkv_bias.narrow(0, row, rows));
    row += rows;
  }
  read_rows(mlp, "gate_proj.weight", {inner, hidden}, e.gate_up_proj, 0, quantization);
  read_rows(mlp, "up_proj.weight", {inner, hidden}, e.gate_up_proj, inner, quantization);
  e.input_layernorm = layer.get(named("input_layernorm", "weight"), {hidden});
  e.q_norm = attn.get(named("q_norm", "weight"), {dim});
  e.k_norm = attn.get(named("k_norm", "weight"), {dim});
  e.post_attention_layernorm = layer.get(named("post_attention_layernorm", "weight"), {hidden});
  return e;
}

MotLayers MotLayers::load(const Weights& model, const Qwen2Config& config,
                          const std::optional<MotOffload>& offload,
                          const MotQuantization& quantization) {
  MotLayers layers;
  std::vector<HostExpert> on_host;
  const std::int64_t count = config.num_hidden_layers;
  const at::Device device = model.options().device();
  const MatrixFormat format = {c10::typeMetaToScalarType(model.options().dtype()),
                               quantization.kind};
  const auto load = [&](const Weights& layer, std::int64_t index, bool gen) {
    const std::string_view suffix = gen ? "_moe_gen" : "";
    if (!offload ||
        !is_streamed(index, count, gen ? offload->resident_gen : offload->resident_und)) {
      return MotExpert::load(layer, config, suffix, quantization);
    }
    const Tensor host =
        CopyLane::host_buffer(MotExpert::matrix_bytes(config, format), at::kByte, device);
    MotExpert expert = MotExpert::load(layer, config, suffix, quantization, host);
    for (LinearOperand MotExpert::*matrix : kMatrices) expert.*matrix = {};
    on_host.push_back({static_cast<std::size_t>(index), gen, host});
    return expert;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const Weights layer = model.scope(fmt::format("layers.{}", i));
    MotExpert und = load(layer, i, false);
    layers.layers_.push_back({std::move(und), load(layer, i, true)});
  }
  if (!on_host.empty()) {
    layers.stream_ =
        std::make_shared<ExpertStream>(config, format, std::move(on_host), offload->slots, device);
  }
  return layers;
}

bool MotLayers::streams(MotParts parts) const {
  return stream_ != nullptr && stream_->has(parts);
}

const MotLayer& MotLayers::acquire(std::size_t layer, MotParts parts) const {
  return stream_ == nullptr ? layers_[layer] : stream_->acquire(layer, layers_[layer], parts);
}

void MotLayers::release() const {
  if (stream_ != nullptr) stream_->release();
}

}  // namespace diptych

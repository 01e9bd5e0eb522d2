#include "lib/models/qwen2_mot/layers.h"

#include <fmt/format.h>

#include "lib/models/qwen2_mot/expert_stream.h"

namespace diptych {
namespace {

using Matrices = std::array<Tensor MotExpert::*, 4>;
constexpr Matrices kMatrices = {&MotExpert::qkv_proj, &MotExpert::o_proj, &MotExpert::gate_up_proj,
                                &MotExpert::down_proj};

std::array<std::array<std::int64_t, 2>, 4> matrix_shapes(const Qwen2Config& c) {
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size;
  const std::int64_t kv = c.num_key_value_heads * c.head_dim();
  return {{{hidden + 2 * kv, hidden}, {hidden, hidden}, {2 * inner, hidden}, {hidden, inner}}};
}

// Elements up to the next boundary of 512 bytes, where torch's allocator would put a tensor.
std::int64_t aligned(std::int64_t elements, at::ScalarType dtype) {
  const auto unit = static_cast<std::int64_t>(512 / c10::elementSize(dtype));
  return (elements + unit - 1) / unit * unit;
}

// Of `layers` things `resident` stay; the others are spread evenly.
bool is_streamed(std::int64_t layer, std::int64_t layers, std::int64_t resident) {
  const std::int64_t streamed = layers - std::clamp<std::int64_t>(resident, 0, layers);
  return (layer + 1) * streamed / layers > layer * streamed / layers;
}

}  // namespace

std::int64_t MotExpert::matrix_elements(const Qwen2Config& config, at::ScalarType dtype) {
  std::int64_t elements = 0;
  for (const auto& [rows, columns] : matrix_shapes(config)) {
    elements += aligned(rows * columns, dtype);
  }
  return elements;
}

void MotExpert::use_matrices(const Tensor& buffer, const Qwen2Config& config) {
  const auto shapes = matrix_shapes(config);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < kMatrices.size(); ++i) {
    const std::int64_t elements = shapes[i][0] * shapes[i][1];
    this->*kMatrices[i] = buffer.narrow(0, begin, elements).view(shapes[i]);
    begin += aligned(elements, buffer.scalar_type());
  }
}

MotExpert MotExpert::load(const Weights& layer, const Qwen2Config& c, std::string_view suffix,
                          const Tensor& matrices) {
  const auto named = [&](std::string_view name, std::string_view leaf) {
    return fmt::format("{}{}.{}", name, suffix, leaf);
  };
  const std::int64_t hidden = c.hidden_size, inner = c.intermediate_size, dim = c.head_dim();
  const std::int64_t kv = c.num_key_value_heads * dim;
  const Weights attn = layer.scope("self_attn");
  const Weights mlp = layer.scope(fmt::format("mlp{}", suffix));
  MotExpert e;
  if (matrices.defined()) {
    e.use_matrices(matrices, c);
    attn.read(named("o_proj", "weight"), {hidden, hidden}, e.o_proj);
    mlp.read("down_proj.weight", {hidden, inner}, e.down_proj);
  } else {
    e.qkv_proj = at::empty({hidden + 2 * kv, hidden}, layer.options());
    e.o_proj = attn.get(named("o_proj", "weight"), {hidden, hidden});
    e.gate_up_proj = at::empty({2 * inner, hidden}, layer.options());
    e.down_proj = mlp.get("down_proj.weight", {hidden, inner});
  }
  e.qkv_bias = at::empty({hidden + 2 * kv}, layer.options());
  std::int64_t row = 0;
  for (const auto& [name, rows] :
       {std::pair{"q_proj", hidden}, std::pair{"k_proj", kv}, std::pair{"v_proj", kv}}) {
    attn.read(named(name, "weight"), {rows, hidden}, e.qkv_proj.narrow(0, row, rows));
    attn.read(named(name, "bias"), {rows}, e.qkv_bias.narrow(0, row, rows));
    row += rows;
  }
  mlp.read("gate_proj.weight", {inner, hidden}, e.gate_up_proj.narrow(0, 0, inner));
  mlp.read("up_proj.weight", {inner, hidden}, e.gate_up_proj.narrow(0, inner, inner));
  e.input_layernorm = layer.get(named("input_layernorm", "weight"), {hidden});
  e.q_norm = attn.get(named("q_norm", "weight"), {dim});
  e.k_norm = attn.get(named("k_norm", "weight"), {dim});
  e.post_attention_layernorm = layer.get(named("post_attention_layernorm", "weight"), {hidden});
  return e;
}

MotLayers MotLayers::load(const Weights& model, const Qwen2Config& config,
                          const std::optional<MotOffload>& offload) {
  MotLayers layers;
  std::vector<HostExpert> on_host;
  const std::int64_t count = config.num_hidden_layers;
  const at::Device device = model.options().device();
  const at::ScalarType dtype = c10::typeMetaToScalarType(model.options().dtype());
  const auto load = [&](const Weights& layer, std::int64_t index, bool gen) {
    const std::string_view suffix = gen ? "_moe_gen" : "";
    if (!offload ||
        !is_streamed(index, count, gen ? offload->resident_gen : offload->resident_und)) {
      return MotExpert::load(layer, config, suffix);
    }
    const Tensor host =
        CopyLane::host_buffer(MotExpert::matrix_elements(config, dtype), dtype, device);
    MotExpert expert = MotExpert::load(layer, config, suffix, host);
    for (Tensor MotExpert::*matrix : kMatrices) (expert.*matrix).reset();
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
        std::make_shared<ExpertStream>(config, std::move(on_host), offload->slots, device);
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

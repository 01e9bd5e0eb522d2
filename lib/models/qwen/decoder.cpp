#include "lib/models/qwen/decoder.h"

#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/ops/launch_label.h"

namespace diptych {
namespace {

std::array<NormRoute, 1> norm_of(const Tensor& weight, std::int64_t rows) {
  return {{{weight, RowSet::range(0, rows)}}};
}

// -> [rows, outputs] in the dtype of the run
Tensor project(const LinearOperand& x, const LinearOperand& weight, const QwenLayer& layer,
               const char* label, const Kernels& kernels, const Tensor& bias = {}) {
  const LaunchLabel launched(label);
  const Tensor y =
      at::empty({x.values.size(0), weight.values.size(0)}, layer.input_layernorm.options());
  linear_into(y, x, weight, bias, kernels);
  return y;
}

// [sequences, capacity, kv_heads, head_dim] each
std::pair<Tensor, Tensor> cached(const KvCache& cache, std::size_t layer, const QwenRows& rows) {
  const auto index = static_cast<std::int64_t>(layer);
  const std::int64_t count = cache.rows() - rows.first_cache_row;
  const auto part = [&](const Tensor& all) { return all.narrow(0, rows.first_cache_row, count); };
  return {part(cache.keys(index)), part(cache.values(index))};
}

// What norms, rotates and stores the product of some heads: `heads` of q, then all of k and v.
QkNormRope rope_args(const Tensor& qkv, std::int64_t heads, const QwenLayer& layer,
                     const QwenRows& rows, const QwenConfig& c) {
  QkNormRope args;
  args.qkv = qkv;
  args.routes = {{layer.q_norm, layer.k_norm, RowSet::range(0, qkv.size(0))}};
  args.cos = rows.cos;
  args.sin = rows.sin;
  args.slots = rows.slots;
  args.heads = heads;
  args.kv_heads = c.num_key_value_heads;
  args.head_dim = c.head_dim;
  args.eps = c.rms_norm_eps;
  args.rounding = RopeRounding::every_step;
  return args;
}

// Stores keys and values, and attends -> [rows, heads * head_dim], as o_proj takes it
LinearOperand attend(const LinearOperand& h, const QwenLayer& layer, const QwenRows& rows,
                     const QwenConfig& c, const std::pair<Tensor, Tensor>& cache,
                     const AttentionBackend& attention, Quantization projections,
                     const Kernels& kernels) {
  QkNormRope rope =
      rope_args(project(h, layer.qkv_proj, layer, "qkv_proj", kernels, layer.qkv_bias),
                c.num_attention_heads, layer, rows, c);
  const std::int64_t sequences = rows.lengths->samples();
  rope.keys = cache.first.narrow(0, 0, sequences);
  rope.values = cache.second.narrow(0, 0, sequences);
  const LaunchLabel label("attention");
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  const AttentionCall call = {{}, rope.keys, rope.values, rows.lengths, rows.causal, scale};
  return attention.forward_projected(std::move(rope), call, projections, kernels);
}

// silu(gate) * up -> [rows, intermediate], in that format
LinearOperand activate(const LinearOperand& h, const QwenLayer& layer, Quantization format,
                       const Kernels& kernels) {
  constexpr const char* kLabel = "gate_up_proj";
  if (!h.scales.defined() && format == Quantization::none) {
    const LaunchLabel label(kLabel);
    const std::array routes = {
        LinearRoute{layer.gate_up_proj, {}, RowSet::range(0, h.values.size(0)), {kLabel}}};
    return {routed_gated_linear(h.values, routes, kernels), {}};
  }
  return silu_mul(project(h, layer.gate_up_proj, layer, kLabel, kernels), format, kernels);
}

// Some output rows of a projection.
LinearOperand outputs_of(const LinearOperand& matrix, std::int64_t first) {
  const std::int64_t count = matrix.values.size(0) - first;
  LinearOperand part{matrix.values.narrow(0, first, count), {}};
  if (matrix.scales.defined()) part.scales = matrix.scales.narrow(0, first, count);
  return part;
}

}  // namespace

QwenDecoder QwenDecoder::load(const Weights& model, const QwenConfig& config,
                              const MatrixQuantization& quantization) {
  QwenDecoder decoder;
  decoder.config = config;
  decoder.quantization = quantization.kind;
  const Weights layers = model.scope("layers");
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    decoder.layers.push_back(
        QwenLayer::load(layers.scope(fmt::format("{}", i)), config, {}, quantization));
  }
  decoder.norm = model.get("norm.weight", {config.hidden_size});
  return decoder;
}

Tensor QwenDecoder::forward(const QwenRows& rows, Tensor x, const KvCache& cache,
                            const AttentionBackend& attention, const Kernels& kernels,
                            const QwenObserver& observer) const {
  const std::int64_t count = x.size(0);
  TORCH_CHECK(rows.lengths != nullptr && count == rows.lengths->total_q && count > 0,
              "[qwen] x is ", x.sizes(), ", which the lengths are not of");
  const double eps = config.rms_norm_eps;
  const Quantization format =
      quantizes_rows(quantization, count) ? quantization : Quantization::none;
  const bool may_stop = x.device().is_cpu();  // on a GPU the layers are only launched here
  LinearOperand h =
      rms_norm(x, norm_of(layers.front().input_layernorm, count), eps, format, kernels);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (may_stop) check_interrupted();
    const QwenLayer& layer = layers[i];
    const auto keys_and_values = cached(cache, i, rows);
    const LinearOperand attended =
        attend(h, layer, rows, config, keys_and_values, attention, quantization, kernels);
    const Tensor out = project(attended, layer.o_proj, layer, "o_proj", kernels);
    h = add_rms_norm_(x, out, norm_of(layer.post_attention_layernorm, count), eps, format, kernels);
    const Tensor down =
        project(activate(h, layer, format, kernels), layer.down_proj, layer, "down_proj", kernels);
    const bool last = i + 1 == layers.size();
    const Tensor& next = last ? norm : layers[i + 1].input_layernorm;
    h = add_rms_norm_(x, down, norm_of(next, count), eps, last ? Quantization::none : format,
                      kernels);
    if (observer) observer(static_cast<std::int64_t>(i), x);
  }
  return h.values;
}

// The operation that norms and stores keys wants a query head, too: it gets the last one, which is
// beside k in the packed projection, and its result is not used.
void QwenDecoder::write_keys(const QwenRows& rows, const Tensor& h, const KvCache& cache,
                             const Kernels& kernels) const {
  const bool quantizes = quantizes_rows(quantization, h.size(0));
  const LinearOperand x = quantize_rows(h, quantizes ? quantization : Quantization::none, kernels);
  const std::int64_t first = config.q_width() - config.head_dim;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const QwenLayer& layer = layers[i];
    const Tensor bias = layer.qkv_bias.defined()
                            ? layer.qkv_bias.narrow(0, first, config.qkv_width() - first)
                            : Tensor();
    const Tensor kv =
        project(x, outputs_of(layer.qkv_proj, first), layer, "context k and v", kernels, bias);
    QkNormRope args = rope_args(kv, 1, layer, rows, config);
    std::tie(args.keys, args.values) = cached(cache, i, rows);
    qk_norm_rope(args, kernels);
  }
}

}  // namespace diptych

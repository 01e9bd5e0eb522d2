#include "lib/models/umt5/umt5.h"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"

namespace diptych {

Umt5Layer Umt5Layer::load(const Weights& weights, const Umt5Config& c, bool has_bias) {
  const Weights attention = weights.scope("layer.0.SelfAttention"),
                feed_forward = weights.scope("layer.1.DenseReluDense");
  Umt5Layer layer;
  layer.attention_norm = weights.get("layer.0.layer_norm.weight", {c.d_model});
  layer.q = attention.get("q.weight", {c.inner(), c.d_model});
  layer.k = attention.get("k.weight", {c.inner(), c.d_model});
  layer.v = attention.get("v.weight", {c.inner(), c.d_model});
  layer.o = attention.get("o.weight", {c.d_model, c.inner()});
  if (has_bias) {
    layer.relative_attention_bias = attention.get("relative_attention_bias.weight",
                                                  {c.relative_attention_num_buckets, c.num_heads});
  }
  layer.feed_forward_norm = weights.get("layer.1.layer_norm.weight", {c.d_model});
  layer.wi = feed_forward.get(c.gated_gelu ? "wi_0.weight" : "wi.weight", {c.d_ff, c.d_model});
  if (c.gated_gelu) layer.wi_1 = feed_forward.get("wi_1.weight", {c.d_ff, c.d_model});
  layer.wo = feed_forward.get("wo.weight", {c.d_model, c.d_ff});
  return layer;
}

namespace {

constexpr const char *kShared = "shared.weight", *kTied = "encoder.embed_tokens.weight";

// The embedding has either of two names; where both are there, they are one tensor.
const char* embedding_name(const Weights& weights) {
  return weights.contains(kShared) || !weights.contains(kTied) ? kShared : kTied;
}

Tensor load_embedding(const Weights& weights, const Umt5Config& c) {
  if (weights.contains(kTied)) weights.check(kTied, {c.vocab_size, c.d_model});
  return weights.get(embedding_name(weights), {c.vocab_size, c.d_model});
}

// table [buckets, heads] -> [heads, n, n]: the bias of key j for query i by the bucket of j - i.
Tensor position_bias(const Tensor& table, const Tensor& buckets, std::int64_t n) {
  const Tensor by_distance = table.index_select(0, buckets).t();  // [heads, 2n - 1], from 1 - n on
  // Row i of the windows begins at distance i + 1 - n, which is that of the query n - 1 - i.
  return by_distance.unfold(1, n, 1).flip(1);
}

Tensor attend(const Tensor& x, const Umt5Layer& layer, const Umt5Config& c, const Tensor& bias) {
  const std::int64_t n = x.size(0);
  const auto heads = [&](const Tensor& projection) {  // [heads, n, d_kv]
    return at::linear(x, projection).view({n, c.num_heads, c.d_kv}).transpose(0, 1);
  };
  const Tensor scores = at::baddbmm(bias, heads(layer.q), heads(layer.k).transpose(1, 2));
  const Tensor shares = at::softmax(scores, -1, at::kFloat).to(x.scalar_type());
  return at::bmm(shares, heads(layer.v)).transpose(0, 1).reshape({n, c.inner()});
}

Tensor feed_forward(const Tensor& x, const Umt5Layer& layer) {
  Tensor inner = at::linear(x, layer.wi);
  if (layer.wi_1.defined()) {
    inner = at::gelu(inner, "tanh").mul_(at::linear(x, layer.wi_1));
  } else {
    inner.relu_();
  }
  return at::linear(inner, layer.wo);
}

Tensor ids_tensor(std::span<const std::int64_t> ids, const Umt5Config& c) {
  TORCH_CHECK(!ids.empty(), "[umt5] no ids");
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= c.vocab_size) {
      throw InputError("text encoder: token id {} is not in its vocabulary of {}", id,
                       c.vocab_size);
    }
  }
  return at::tensor(at::IntArrayRef(ids.data(), ids.size()), at::kLong);
}

}  // namespace

void check_umt5_tensors(const Weights& weights, const Umt5Config& c) {
  for (const auto& [name, shape] : umt5_layout(c))
    weights.check(name == kShared ? embedding_name(weights) : name, shape);
  if (weights.contains(kTied)) weights.check(kTied, {c.vocab_size, c.d_model});
  weights.require_all_read();
}

Umt5 Umt5::load(const Weights& weights, const Umt5Config& c) {
  Umt5 m;
  m.config = c;
  m.shared = load_embedding(weights, c);
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    const Weights block = weights.scope(fmt::format("encoder.block.{}", i));
    m.layers.push_back(Umt5Layer::load(block, c, i == 0 || c.bias_in_every_layer));
  }
  m.final_layer_norm = weights.get("encoder.final_layer_norm.weight", {c.d_model});
  return m;
}

Tensor Umt5::forward(std::span<const std::int64_t> ids, const Kernels& kernels,
                     const Umt5Observer& observer) const {
  const auto see = [&observer](const std::string& name, const Tensor& value) {
    if (observer) observer(name, value.clone());  // x changes in place
  };
  const auto n = static_cast<std::int64_t>(ids.size());
  const at::Device device = shared.device();
  const double eps = config.layer_norm_epsilon;
  Tensor x = shared.index_select(0, ids_tensor(ids, config).to(device));  // [n, d_model]
  see("hidden00", x);
  const Tensor buckets =
      umt5_buckets(at::arange(1 - n, n, at::kLong), config).to(device);  // [2n - 1]
  Tensor bias;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (x.device().is_cpu()) check_interrupted();  // on a GPU the layers are only launched here
    const Umt5Layer& layer = layers[i];
    if (layer.relative_attention_bias.defined()) {
      bias = position_bias(layer.relative_attention_bias, buckets, n);
      see(fmt::format("block{:02}.position_bias", i), bias);
    }
    const Tensor attended =
        attend(rms_norm(x, layer.attention_norm, eps, kernels), layer, config, bias);
    x.add_(at::linear(attended, layer.o));
    x.add_(feed_forward(rms_norm(x, layer.feed_forward_norm, eps, kernels), layer));
    if (i + 1 < layers.size()) see(fmt::format("hidden{:02}", i + 1), x);
  }
  x = rms_norm(x, final_layer_norm, eps, kernels);
  see(fmt::format("hidden{:02}", layers.size()), x);
  return x;
}

Tensor umt5_buckets(const Tensor& relative_positions, const Umt5Config& c) {
  const std::int64_t half = c.relative_attention_num_buckets / 2, exact = half / 2;
  const Tensor distance = relative_positions.abs();
  const double octaves =
      std::log(static_cast<double>(c.relative_attention_max_distance) / static_cast<double>(exact));
  // In float32 as the reference: the logarithm of a distance may lie on a bucket's edge.
  const Tensor far = distance.clamp_min(1)
                         .to(at::kFloat)
                         .div(exact)
                         .log()
                         .div(octaves)
                         .mul(half - exact)
                         .to(at::kLong)
                         .add(exact)
                         .clamp_max(half - 1);
  return at::where(distance < exact, distance, far) + relative_positions.gt(0).to(at::kLong) * half;
}

}  // namespace diptych

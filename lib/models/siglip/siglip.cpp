#include "lib/models/siglip/siglip.h"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"

namespace diptych {

SiglipNorm SiglipNorm::load(const Weights& weights, std::int64_t hidden) {
  const auto widened = [&](std::string_view leaf) {
    const Tensor wide = at::empty({hidden}, weights.options().dtype(at::kFloat));
    weights.get_then(leaf, {hidden}, [wide](const Tensor& plain) { wide.copy_(plain); });
    return wide;
  };
  return {widened("weight"), widened("bias")};
}

Tensor SiglipNorm::forward(const Tensor& x, double eps) const {
  return at::layer_norm(x.to(at::kFloat), weight.sizes(), weight, bias, eps).to(x.scalar_type());
}

SiglipLayer SiglipLayer::load(const Weights& weights, std::int64_t hidden, std::int64_t inner) {
  const Weights attn = weights.scope("self_attn"), mlp = weights.scope("mlp");
  const auto packed = [&](std::string_view leaf, std::vector<std::int64_t> shape) {
    const std::int64_t rows = shape.front();
    shape.front() *= 3;
    const Tensor all = at::empty(shape, attn.options());
    shape.front() = rows;
    std::int64_t row = 0;
    for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
      attn.scope(name).read(leaf, shape, all.narrow(0, row, rows));
      row += rows;
    }
    return all;
  };
  SiglipLayer layer;
  layer.layer_norm1 = SiglipNorm::load(weights.scope("layer_norm1"), hidden);
  layer.layer_norm2 = SiglipNorm::load(weights.scope("layer_norm2"), hidden);
  layer.qkv_proj = packed("weight", {hidden, hidden});
  layer.qkv_bias = packed("bias", {hidden});
  layer.out_proj = attn.get("out_proj.weight", {hidden, hidden});
  layer.out_bias = attn.get("out_proj.bias", {hidden});
  layer.fc1 = mlp.get("fc1.weight", {inner, hidden});
  layer.fc1_bias = mlp.get("fc1.bias", {inner});
  layer.fc2 = mlp.get("fc2.weight", {hidden, inner});
  layer.fc2_bias = mlp.get("fc2.bias", {hidden});
  return layer;
}

Siglip Siglip::load(const Weights& weights, const SiglipConfig& c) {
  const std::int64_t hidden = c.hidden_size;
  const Weights embeddings = weights.scope("embeddings");
  Siglip m;
  m.config = c;
  m.patch_embedding = embeddings.get("patch_embedding.weight", {hidden, c.patch_width()});
  m.patch_bias = embeddings.get("patch_embedding.bias", {hidden});
  m.position_embedding = embeddings.get("position_embedding.weight", {c.side() * c.side(), hidden});
  for (std::int64_t i = 0; i < c.layers(); ++i) {
    m.layers.push_back(SiglipLayer::load(weights.scope(fmt::format("encoder.layers.{}", i)), hidden,
                                         c.intermediate_size));
  }
  m.post_layernorm = SiglipNorm::load(weights.scope("post_layernorm"), hidden);
  return m;
}

namespace {

// h [rows, hidden] -> the attended rows [rows, hidden], before out_proj.
Tensor attend(const Tensor& h, const SiglipLayer& layer, const SiglipPass& pass) {
  const std::int64_t rows = h.size(0), dim = h.size(1) / pass.heads;
  const Tensor qkv = at::linear(h, layer.qkv_proj, layer.qkv_bias).view({rows, 3, pass.heads, dim});
  const auto keys = [&](std::int64_t part) {
    return qkv.select(1, part).unflatten(0, {pass.lengths.samples(), pass.lengths.max_q});
  };
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  return pass.attention
      .forward({qkv.select(1, 0), keys(1), keys(2), &pass.lengths, /*causal=*/false, scale})
      .flatten(1);
}

Tensor activate(const Tensor& x, VisionGelu gelu) {
  if (gelu == VisionGelu::quick) return x * at::sigmoid(1.702 * x);
  return at::gelu(x, gelu == VisionGelu::tanh ? "tanh" : "none");
}

}  // namespace

Tensor SiglipLayer::forward(const Tensor& x, const SiglipPass& pass) const {
  const Tensor attended = attend(layer_norm1.forward(x, pass.eps), *this, pass);
  const Tensor sum = x + at::linear(attended, out_proj, out_bias);
  const Tensor inner =
      activate(at::linear(layer_norm2.forward(sum, pass.eps), fc1, fc1_bias), pass.gelu);
  return sum + at::linear(inner, fc2, fc2_bias);
}

Tensor Siglip::forward(const Tensor& patches, const Tensor& position_ids,
                       const AttentionBackend& attention, const SiglipObserver& observer) const {
  const std::int64_t rows = patches.size(0);
  TORCH_CHECK(position_ids.dim() == 1 && position_ids.size(0) == rows, "[siglip] ", rows,
              " patches and position ids ", position_ids.sizes());
  const auto see = [&observer](const std::string& name, const Tensor& value) {
    if (observer) observer("vit." + name, value);
  };
  const auto lengths = AttentionLengths::make({rows}, {rows}, rows, patches.device());
  const Tensor positions = position_embedding.index_select(0, position_ids.to(patches.device()));
  Tensor x = at::linear(patches, patch_embedding, patch_bias) + positions;  // [rows, hidden]
  see("embed", x);
  const SiglipPass pass = {config.num_attention_heads, config.layer_norm_eps, VisionGelu::tanh,
                           lengths, attention};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (x.device().is_cpu()) check_interrupted();  // on a GPU the layers are only launched here
    x = layers[i].forward(x, pass);
    see(fmt::format("layer{:02}.hidden", i), x);
  }
  const Tensor out = post_layernorm.forward(x, config.layer_norm_eps);
  see("post_layernorm", out);
  return out;
}

Tensor patchify(const Tensor& image, std::int64_t patch) {
  TORCH_CHECK(image.dim() == 4 && image.size(0) == 1, "[patchify] image ", image.sizes());
  TORCH_CHECK(image.size(2) % patch == 0 && image.size(3) % patch == 0, "[patchify] image ",
              image.sizes(), " in patches of ", patch);
  const std::int64_t channels = image.size(1);
  const std::int64_t h = image.size(2) / patch, w = image.size(3) / patch;
  const Tensor grid = image.reshape({channels, h, patch, w, patch});
  return grid.permute({1, 3, 2, 4, 0}).reshape({h * w, patch * patch * channels});
}

Tensor siglip_position_ids(std::int64_t h, std::int64_t w, const SiglipConfig& config) {
  const std::int64_t side = config.side();
  if (h < 1 || w < 1 || h > side || w > side) {
    throw InputError("vision: a picture of {} x {} patches, expected 1 to {} a side", w, h, side);
  }
  const Tensor row = at::arange(h, at::kLong).unsqueeze(1) * side;  // [h, 1]
  return (row + at::arange(w, at::kLong)).flatten();
}

}  // namespace diptych

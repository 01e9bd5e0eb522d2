#include "lib/models/flux_vae/flux_vae.h"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/flux_vae/strips.h"

namespace diptych {
namespace {

constexpr std::int64_t kGroups = VaeNorm::kGroups;

std::int64_t count_scopes(const Weights& weights, const std::string& pattern_leaf,
                          std::string_view prefix) {
  std::int64_t count = 0;
  while (weights.contains(fmt::format("{}{}{}", prefix, count, pattern_leaf))) ++count;
  return count;
}

}  // namespace

FluxVaeConfig FluxVaeConfig::infer(const Weights& weights) {
  FluxVaeConfig c;
  if (weights.is_dummy()) return c;
  const auto conv_shape = [&](const std::string& name) {
    auto shape = weights.shape(name);
    if (shape.size() != 4)
      throw InputError("{}: has {} dimensions, expected 4", name, shape.size());
    return shape;
  };
  c.ch = conv_shape("encoder.conv_in.weight")[0];
  c.z_channels = conv_shape("decoder.conv_in.weight")[1];
  c.num_res_blocks = count_scopes(weights, ".conv1.weight", "encoder.down.0.block.");
  const std::int64_t levels = count_scopes(weights, ".block.0.conv1.weight", "encoder.down.");
  if (c.ch % kGroups != 0) {
    throw InputError("encoder.conv_in.weight: {} channels, expected a multiple of {}", c.ch,
                     kGroups);
  }
  c.ch_mult.clear();
  for (std::int64_t i = 0; i < levels; ++i) {
    const std::int64_t out = conv_shape(fmt::format("encoder.down.{}.block.0.conv1.weight", i))[0];
    if (c.ch < 1 || out % c.ch != 0 || out % kGroups != 0) {
      throw InputError(
          "encoder.down.{}.block.0.conv1.weight: {} channels, expected a multiple of {} and {}", i,
          out, c.ch, kGroups);
    }
    c.ch_mult.push_back(out / c.ch);
  }
  if (levels < 1 || levels > 8 || c.num_res_blocks < 1) {
    throw InputError("encoder.down: {} levels of {} blocks, expected at least one", levels,
                     c.num_res_blocks);
  }
  return c;
}

VaeConv VaeConv::load(const Weights& weights, std::int64_t out, std::int64_t in,
                      std::int64_t kernel) {
  return {weights.get("weight", {out, in, kernel, kernel}), weights.get("bias", {out})};
}

Tensor VaeConv::forward(const Tensor& x, std::int64_t stride) const {
  const std::int64_t padding = stride == 1 ? weight.size(2) / 2 : 0;
  return at::conv2d(x, weight, bias, stride, padding);
}

VaeNorm VaeNorm::load(const Weights& weights, std::int64_t channels) {
  return {weights.get("weight", {channels}), weights.get("bias", {channels})};
}

Tensor VaeNorm::forward(const Tensor& x) const {
  return at::group_norm(x, kGroups, weight, bias, kEps);
}

Tensor VaeNorm::activated(const Tensor& x) const {
  Tensor h = forward(x);
  return at::silu_(h);
}

VaeResBlock VaeResBlock::load(const Weights& w, std::int64_t in, std::int64_t out) {
  VaeResBlock b;
  b.norm1 = VaeNorm::load(w.scope("norm1"), in);
  b.conv1 = VaeConv::load(w.scope("conv1"), out, in, 3);
  b.norm2 = VaeNorm::load(w.scope("norm2"), out);
  b.conv2 = VaeConv::load(w.scope("conv2"), out, out, 3);
  if (in != out) b.nin_shortcut = VaeConv::load(w.scope("nin_shortcut"), out, in, 1);
  return b;
}

Tensor VaeResBlock::forward(const Tensor& x) const {
  // Step by step: a temporary of a nested call would live to the end of the whole expression, and
  // at full size each of these maps takes half a gibibyte or more.
  Tensor h = norm1.activated(x);
  h = conv1.forward(h);
  h = norm2.activated(h);
  h = conv2.forward(h);
  return h.add_(nin_shortcut ? nin_shortcut->forward(x) : x);
}

VaeAttention VaeAttention::load(const Weights& w, std::int64_t channels) {
  const auto conv = [&](std::string_view name) {
    return VaeConv::load(w.scope(name), channels, channels, 1);
  };
  return {VaeNorm::load(w.scope("norm"), channels), conv("q"), conv("k"), conv("v"),
          conv("proj_out")};
}

Tensor VaeAttention::forward(const Tensor& x, std::optional<std::int64_t> most_queries) const {
  const Tensor h = norm.forward(x);
  const auto rows = [](const Tensor& t) {  // [n, c, H, W] -> [n, 1, H * W, c]
    return t.flatten(2).transpose(1, 2).unsqueeze(1).contiguous();
  };
  const Tensor queries = rows(q.forward(h)), keys = rows(k.forward(h)), values = rows(v.forward(h));
  std::vector<Tensor> attended;
  for (const Tensor& asked : queries.split(most_queries.value_or(queries.size(2)), 2)) {
    attended.push_back(at::scaled_dot_product_attention(asked, keys, values));
  }
  const Tensor all = attended.size() == 1 ? attended.front() : at::cat(attended, 2);
  return x + proj_out.forward(all.squeeze(1).transpose(1, 2).reshape(x.sizes()));
}

VaeMid VaeMid::load(const Weights& w, std::int64_t channels) {
  return {VaeResBlock::load(w.scope("block_1"), channels, channels),
          VaeResBlock::load(w.scope("block_2"), channels, channels),
          VaeAttention::load(w.scope("attn_1"), channels)};
}

namespace {

VaeLevel load_level(const Weights& w, std::int64_t in, std::int64_t out, std::int64_t blocks,
                    std::string_view resample) {
  VaeLevel level;
  for (std::int64_t i = 0; i < blocks; ++i) {
    level.block.push_back(
        VaeResBlock::load(w.scope(fmt::format("block.{}", i)), i == 0 ? in : out, out));
  }
  if (!resample.empty()) level.resample = VaeConv::load(w.scope(resample), out, out, 3);
  return level;
}

}  // namespace

FluxVae FluxVae::load(const Weights& weights, const FluxVaeConfig& c) {
  FluxVae vae;
  vae.config = c;
  const auto levels = static_cast<std::int64_t>(c.ch_mult.size());
  const auto width = [&](std::int64_t level) {
    return c.ch * c.ch_mult[static_cast<std::size_t>(level)];
  };
  const std::int64_t widest = width(levels - 1);

  const Weights e = weights.scope("encoder");
  vae.encoder.conv_in = VaeConv::load(e.scope("conv_in"), c.ch, 3, 3);
  for (std::int64_t i = 0; i < levels; ++i) {
    vae.encoder.down.push_back(load_level(e.scope(fmt::format("down.{}", i)),
                                          i == 0 ? c.ch : width(i - 1), width(i), c.num_res_blocks,
                                          i + 1 < levels ? "downsample.conv" : ""));
  }
  vae.encoder.mid = VaeMid::load(e.scope("mid"), widest);
  vae.encoder.norm_out = VaeNorm::load(e.scope("norm_out"), widest);
  vae.encoder.conv_out = VaeConv::load(e.scope("conv_out"), 2 * c.z_channels, widest, 3);

  const Weights d = weights.scope("decoder");
  vae.decoder.conv_in = VaeConv::load(d.scope("conv_in"), widest, c.z_channels, 3);
  vae.decoder.mid = VaeMid::load(d.scope("mid"), widest);
  for (std::int64_t i = 0; i < levels; ++i) {
    vae.decoder.up.push_back(load_level(d.scope(fmt::format("up.{}", i)),
                                        i + 1 < levels ? width(i + 1) : widest, width(i),
                                        c.num_res_blocks + 1, i > 0 ? "upsample.conv" : ""));
  }
  vae.decoder.norm_out = VaeNorm::load(d.scope("norm_out"), width(0));
  vae.decoder.conv_out = VaeConv::load(d.scope("conv_out"), 3, width(0), 3);
  if (!weights.is_dummy()) weights.require_all_read();
  return vae;
}

namespace {

// The steps of a pass, with whole maps or with strips of them.
struct Steps {
  const std::optional<VaeStrips>& strips;

  Tensor block(const VaeResBlock& block, Tensor x) const {
    return strips ? vae_strips::res_block(block, std::move(x), *strips) : block.forward(x);
  }
  Tensor attention(const VaeAttention& attention, const Tensor& x) const {
    if (!strips) return attention.forward(x);
    return attention.forward(x, vae_strips::attention_queries(x, *strips));
  }
  // One zero column right and one row below, then stride 2 without padding.
  Tensor downsample(const VaeConv& conv, Tensor x) const {
    if (strips) return vae_strips::downsample(conv, x, *strips);
    x = at::constant_pad_nd(x, {0, 1, 0, 1});
    return conv.forward(x, 2);
  }
  Tensor upsample(const VaeConv& conv, Tensor x) const {
    if (strips) return vae_strips::upsample(conv, x, *strips);
    x = at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
    return conv.forward(x);
  }
  Tensor out(const VaeNorm& norm, const VaeConv& conv, Tensor x) const {
    if (strips) return vae_strips::normed_conv(norm, conv, x, *strips);
    x = norm.activated(x);
    return conv.forward(x);
  }
};

// Reports a step's result and hands it on.
Tensor seen(const VaeObserver& observer, const std::string& name, Tensor value) {
  if (observer) observer(name, value);
  return value;
}

Tensor run_mid(const VaeMid& mid, Tensor h, const Steps& steps, const VaeObserver& observer,
               const std::string& scope) {
  h = seen(observer, scope + ".mid.block_1", steps.block(mid.block_1, std::move(h)));
  h = seen(observer, scope + ".mid.attn_1", steps.attention(mid.attn_1, h));
  return seen(observer, scope + ".mid.block_2", steps.block(mid.block_2, std::move(h)));
}

}  // namespace

Tensor FluxVae::encode_moments(const Tensor& image, const VaeObserver& observer,
                               const std::optional<VaeStrips>& strips) const {
  const Steps steps{strips};
  Tensor h = encoder.conv_in.forward(image);
  for (std::size_t i = 0; i < encoder.down.size(); ++i) {
    const VaeLevel& level = encoder.down[i];
    for (std::size_t b = 0; b < level.block.size(); ++b) {
      h = seen(observer, fmt::format("encoder.down.{}.block.{}", i, b),
               steps.block(level.block[b], std::move(h)));
    }
    if (!level.resample) continue;
    h = seen(observer, fmt::format("encoder.down.{}.downsample", i),
             steps.downsample(*level.resample, std::move(h)));
  }
  h = run_mid(encoder.mid, std::move(h), steps, observer, "encoder");
  return steps.out(encoder.norm_out, encoder.conv_out, std::move(h));
}

Tensor FluxVae::latent_from_moments(const Tensor& moments, const Tensor& noise) const {
  const Tensor mean = moments.narrow(1, 0, config.z_channels);
  const Tensor logvar = moments.narrow(1, config.z_channels, config.z_channels);
  const Tensor z = noise.defined() ? mean + at::exp(0.5 * logvar) * noise : mean;
  return config.scale_factor * (z - config.shift_factor);
}

Tensor FluxVae::decode(const Tensor& latent, const VaeObserver& observer,
                       const std::optional<VaeStrips>& strips) const {
  const Steps steps{strips};
  Tensor h = decoder.conv_in.forward(latent / config.scale_factor + config.shift_factor);
  h = seen(observer, "decoder.conv_in", std::move(h));
  h = run_mid(decoder.mid, std::move(h), steps, observer, "decoder");
  for (std::size_t i = decoder.up.size(); i-- > 0;) {
    for (const VaeResBlock& block : decoder.up[i].block) h = steps.block(block, std::move(h));
    if (!decoder.up[i].resample) continue;
    h = seen(observer, fmt::format("decoder.up.{}.upsample", i),
             steps.upsample(*decoder.up[i].resample, std::move(h)));
  }
  return steps.out(decoder.norm_out, decoder.conv_out, std::move(h));
}

Tensor to_uint8(const Tensor& image) {
  const Tensor unit = (image.select(0, 0) * 0.5 + 0.5).clamp(0, 1) * 255;
  return unit.permute({1, 2, 0}).to(at::kByte).contiguous();
}

}  // namespace diptych

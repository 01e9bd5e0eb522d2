#include "lib/models/flux_vae/flux_vae.h"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr std::int64_t kGroups = 32;
constexpr double kNormEps = 1e-6;

std::int64_t count_scopes(const Weights& weights, const std::string& pattern_leaf,
                          std::string_view prefix) {
  std::int64_t count = 0;
  while (weights.contains(fmt::format("{}{}{}", prefix, count, pattern_leaf))) ++count;
  return count;
}

Tensor swish(const Tensor& x) {
  return at::silu(x);
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
  return at::group_norm(x, kGroups, weight, bias, kNormEps);
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
  const Tensor h = conv2.forward(swish(norm2.forward(conv1.forward(swish(norm1.forward(x))))));
  return (nin_shortcut ? nin_shortcut->forward(x) : x) + h;
}

VaeAttention VaeAttention::load(const Weights& w, std::int64_t channels) {
  const auto conv = [&](std::string_view name) {
    return VaeConv::load(w.scope(name), channels, channels, 1);
  };
  return {VaeNorm::load(w.scope("norm"), channels), conv("q"), conv("k"), conv("v"),
          conv("proj_out")};
}

Tensor VaeAttention::forward(const Tensor& x) const {
  const Tensor h = norm.forward(x);
  const auto rows = [](const Tensor& t) {  // [n, c, H, W] -> [n, 1, H * W, c]
    return t.flatten(2).transpose(1, 2).unsqueeze(1).contiguous();
  };
  const Tensor attended =
      at::scaled_dot_product_attention(rows(q.forward(h)), rows(k.forward(h)), rows(v.forward(h)));
  return x + proj_out.forward(attended.squeeze(1).transpose(1, 2).reshape(x.sizes()));
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

Tensor FluxVae::encode_moments(const Tensor& image, const VaeObserver& observer) const {
  const auto see = [&](const std::string& name, const Tensor& value) {
    if (observer) observer("encoder." + name, value);
  };
  Tensor h = encoder.conv_in.forward(image);
  for (std::size_t i = 0; i < encoder.down.size(); ++i) {
    const VaeLevel& level = encoder.down[i];
    for (std::size_t b = 0; b < level.block.size(); ++b) {
      h = level.block[b].forward(h);
      see(fmt::format("down.{}.block.{}", i, b), h);
    }
    if (!level.resample) continue;
    // One zero column right and one row below, then stride 2 without padding.
    h = level.resample->forward(at::constant_pad_nd(h, {0, 1, 0, 1}), 2);
    see(fmt::format("down.{}.downsample", i), h);
  }
  h = encoder.mid.block_1.forward(h);
  see("mid.block_1", h);
  h = encoder.mid.attn_1.forward(h);
  see("mid.attn_1", h);
  h = encoder.mid.block_2.forward(h);
  see("mid.block_2", h);
  return encoder.conv_out.forward(swish(encoder.norm_out.forward(h)));
}

Tensor FluxVae::latent_from_moments(const Tensor& moments, const Tensor& noise) const {
  const Tensor mean = moments.narrow(1, 0, config.z_channels);
  const Tensor logvar = moments.narrow(1, config.z_channels, config.z_channels);
  const Tensor z = noise.defined() ? mean + at::exp(0.5 * logvar) * noise : mean;
  return config.scale_factor * (z - config.shift_factor);
}

Tensor FluxVae::decode(const Tensor& latent, const VaeObserver& observer) const {
  const auto see = [&](const std::string& name, const Tensor& value) {
    if (observer) observer("decoder." + name, value);
  };
  Tensor h = decoder.conv_in.forward(latent / config.scale_factor + config.shift_factor);
  see("conv_in", h);
  h = decoder.mid.block_1.forward(h);
  see("mid.block_1", h);
  h = decoder.mid.attn_1.forward(h);
  see("mid.attn_1", h);
  h = decoder.mid.block_2.forward(h);
  see("mid.block_2", h);
  for (std::size_t i = decoder.up.size(); i-- > 0;) {
    for (const VaeResBlock& block : decoder.up[i].block) h = block.forward(h);
    if (!decoder.up[i].resample) continue;
    h = decoder.up[i].resample->forward(at::upsample_nearest2d(h, {2 * h.size(2), 2 * h.size(3)}));
    see(fmt::format("up.{}.upsample", i), h);
  }
  return decoder.conv_out.forward(swish(decoder.norm_out.forward(h)));
}

Tensor to_uint8(const Tensor& image) {
  const Tensor unit = (image.select(0, 0) * 0.5 + 0.5).clamp(0, 1) * 255;
  return unit.permute({1, 2, 0}).to(at::kByte).contiguous();
}

}  // namespace diptych

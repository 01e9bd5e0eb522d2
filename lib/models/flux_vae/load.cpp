// Weights of the autoencoder: sizes from their shapes, and each part's tensors.
#include <array>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/models/flux_vae/flux_vae.h"
#include "lib/tensor/tf32.h"

namespace diptych {
namespace {

std::int64_t count_scopes(const Weights& weights, const std::string& pattern_leaf,
                          std::string_view prefix) {
  std::int64_t count = 0;
  while (weights.contains(fmt::format("{}{}{}", prefix, count, pattern_leaf))) ++count;
  return count;
}

struct LevelSizes {
  std::int64_t in = 0, out = 0, blocks = 0;
  std::string_view resample = {};  // the name of its convolution, "" = none
};

VaeLevel load_level(const Weights& w, const LevelSizes& sizes, const VaeCompute& compute) {
  VaeLevel level;
  for (std::int64_t i = 0; i < sizes.blocks; ++i) {
    level.block.push_back(VaeResBlock::load(w.scope(fmt::format("block.{}", i)),
                                            i == 0 ? sizes.in : sizes.out, sizes.out, compute));
  }
  if (!sizes.resample.empty())
    level.resample = VaeConv::load(w.scope(sizes.resample), sizes.out, sizes.out, 3, compute);
  return level;
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
  if (c.ch % VaeNorm::kGroups != 0) {
    throw InputError("encoder.conv_in.weight: {} channels, expected a multiple of {}", c.ch,
                     VaeNorm::kGroups);
  }
  c.ch_mult.clear();
  for (std::int64_t i = 0; i < levels; ++i) {
    const std::int64_t out = conv_shape(fmt::format("encoder.down.{}.block.0.conv1.weight", i))[0];
    if (c.ch < 1 || out % c.ch != 0 || out % VaeNorm::kGroups != 0) {
      throw InputError(
          "encoder.down.{}.block.0.conv1.weight: {} channels, expected a multiple of {} and {}", i,
          out, c.ch, VaeNorm::kGroups);
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
                      std::int64_t kernel, const VaeCompute& compute) {
  const std::array<std::int64_t, 4> shape = {out, in, kernel, kernel};
  VaeConv conv{{}, weights.get("bias", {out}), compute};
  if (!compute.tf32) {
    conv.weight = weights.get("weight", shape);
    return conv;
  }
  conv.weight = at::empty(shape, weights.options(), compute.layout());
  weights.get_then("weight", shape,
                   [into = conv.weight](const Tensor& exact) { into.copy_(round_to_tf32(exact)); });
  return conv;
}

VaeNorm VaeNorm::load(const Weights& weights, std::int64_t channels, const VaeCompute& compute) {
  return {weights.get("weight", {channels}), weights.get("bias", {channels}), compute};
}

VaeResBlock VaeResBlock::load(const Weights& w, std::int64_t in, std::int64_t out,
                              const VaeCompute& compute) {
  VaeResBlock b;
  b.norm1 = VaeNorm::load(w.scope("norm1"), in, compute);
  b.conv1 = VaeConv::load(w.scope("conv1"), out, in, 3, compute);
  b.norm2 = VaeNorm::load(w.scope("norm2"), out, compute);
  b.conv2 = VaeConv::load(w.scope("conv2"), out, out, 3, compute);
  if (in != out) b.nin_shortcut = VaeConv::load(w.scope("nin_shortcut"), out, in, 1, compute);
  return b;
}

VaeAttention VaeAttention::load(const Weights& w, std::int64_t channels,
                                const VaeCompute& compute) {
  const auto conv = [&](std::string_view name) {
    return VaeConv::load(w.scope(name), channels, channels, 1, compute);
  };
  return {VaeNorm::load(w.scope("norm"), channels, compute), conv("q"), conv("k"), conv("v"),
          conv("proj_out")};
}

VaeMid VaeMid::load(const Weights& w, std::int64_t channels, const VaeCompute& compute) {
  return {VaeResBlock::load(w.scope("block_1"), channels, channels, compute),
          VaeResBlock::load(w.scope("block_2"), channels, channels, compute),
          VaeAttention::load(w.scope("attn_1"), channels, compute)};
}

FluxVaeConfig FluxVaeConfig::checked(const Weights& weights) {
  return FluxVae::load(weights, infer(weights)).config;
}

FluxVae FluxVae::load(const Weights& weights, const FluxVaeConfig& c, const VaeCompute& compute) {
  FluxVae vae;
  vae.config = c;
  vae.compute = compute;
  const auto levels = static_cast<std::int64_t>(c.ch_mult.size());
  const auto width = [&](std::int64_t level) {
    return c.ch * c.ch_mult[static_cast<std::size_t>(level)];
  };
  const std::int64_t widest = width(levels - 1);

  const Weights e = weights.scope("encoder");
  vae.encoder.conv_in = VaeConv::load(e.scope("conv_in"), c.ch, 3, 3, compute);
  for (std::int64_t i = 0; i < levels; ++i) {
    vae.encoder.down.push_back(load_level(e.scope(fmt::format("down.{}", i)),
                                          {i == 0 ? c.ch : width(i - 1), width(i), c.num_res_blocks,
                                           i + 1 < levels ? "downsample.conv" : ""},
                                          compute));
  }
  vae.encoder.mid = VaeMid::load(e.scope("mid"), widest, compute);
  vae.encoder.norm_out = VaeNorm::load(e.scope("norm_out"), widest, compute);
  vae.encoder.conv_out = VaeConv::load(e.scope("conv_out"), 2 * c.z_channels, widest, 3, compute);

  const Weights d = weights.scope("decoder");
  vae.decoder.conv_in = VaeConv::load(d.scope("conv_in"), widest, c.z_channels, 3, compute);
  vae.decoder.mid = VaeMid::load(d.scope("mid"), widest, compute);
  for (std::int64_t i = 0; i < levels; ++i) {
    vae.decoder.up.push_back(load_level(d.scope(fmt::format("up.{}", i)),
                                        {i + 1 < levels ? width(i + 1) : widest, width(i),
                                         c.num_res_blocks + 1, i > 0 ? "upsample.conv" : ""},
                                        compute));
  }
  vae.decoder.norm_out = VaeNorm::load(d.scope("norm_out"), width(0), compute);
  vae.decoder.conv_out = VaeConv::load(d.scope("conv_out"), 3, width(0), 3, compute);
  if (!weights.is_dummy()) weights.require_all_read();
  return vae;
}

}  // namespace diptych

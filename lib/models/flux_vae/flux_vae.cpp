#include "lib/models/flux_vae/flux_vae.h"

#include <cmath>

#include <fmt/format.h>

#include "lib/base/interrupt.h"
#include "lib/models/flux_vae/strips.h"
#include "lib/ops/group_norm.h"
#include "lib/tensor/tf32.h"

namespace diptych {

Tensor VaeConv::forward(const Tensor& x, std::int64_t stride) const {
  const std::int64_t padding = stride == 1 ? weight.size(2) / 2 : 0;
  const Tensor y = at::conv2d(x, weight, bias, stride, padding);
  return compute.tf32 ? y.contiguous(compute.layout()) : y;
}

namespace {

Tensor normed_for_tf32(const VaeNorm& norm, const Tensor& x, bool silu) {
  const KernelPolicy kernels = norm.compute.kernels;
  const Tensor y = at::empty(x.sizes(), x.options(), norm.compute.layout());
  const Tensor table =
      group_norm_table(x, {norm.weight, norm.bias, VaeNorm::kGroups, VaeNorm::kEps}, kernels);
  group_norm_silu_out(y, x, table, {.silu = silu, .round_to_tf32 = true}, kernels);
  return y;
}

}  // namespace

Tensor VaeNorm::forward(const Tensor& x) const {
  if (compute.tf32) return normed_for_tf32(*this, x, /*silu=*/false);
  return at::group_norm(x, kGroups, weight, bias, kEps);
}

Tensor VaeNorm::activated(const Tensor& x) const {
  if (compute.tf32) return normed_for_tf32(*this, x, /*silu=*/true);
  Tensor h = forward(x);
  return at::silu_(h);
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

namespace {

// [n, rows, c] of the pixels that ask. There is no fused attention for heads this wide but in
// float32 without tensor cores, so the logits are written out.
Tensor attend_tf32(const Tensor& queries, const Tensor& keys, const Tensor& values) {
  const double scale = 1 / std::sqrt(static_cast<double>(keys.size(2)));
  const std::int64_t n = queries.size(0), rows = queries.size(1), pixels = keys.size(1);
  Tensor logits = at::empty({n, rows, pixels}, queries.options());
  at::baddbmm_out(logits, logits, queries, keys.transpose(1, 2), /*beta=*/0, scale);
  logits = at::softmax(logits, -1);
  return at::bmm(logits, values);
}

// Rows that ask at a time where nothing else is said.
std::int64_t usual_queries(const Tensor& keys) {  // [n, pixels, c]
  const std::int64_t row = keys.size(0) * keys.size(1) * keys.element_size();
  return std::max<std::int64_t>(VaeAttention::kLogitBytes / row, 1);
}

}  // namespace

Tensor VaeAttention::forward(const Tensor& x, std::optional<std::int64_t> most_queries) const {
  const Tensor h = norm.forward(x);
  const bool tf32 = norm.compute.tf32;
  const auto rows = [&](const Tensor& t) {  // [n, c, H, W] -> [n, H * W, c]
    const Tensor packed = t.flatten(2).transpose(1, 2).contiguous();
    return tf32 ? round_to_tf32(packed) : packed.unsqueeze(1);
  };
  const Tensor queries = rows(q.forward(h)), keys = rows(k.forward(h)), values = rows(v.forward(h));
  const std::int64_t pixels = queries.size(-2);
  const std::int64_t usual = tf32 ? usual_queries(keys) : pixels;
  std::vector<Tensor> attended;
  for (const Tensor& asked : queries.split(most_queries.value_or(usual), -2)) {
    check_interrupted();
    attended.push_back(tf32 ? attend_tf32(asked, keys, values)
                            : at::scaled_dot_product_attention(asked, keys, values));
  }
  Tensor all = attended.size() == 1 ? attended.front() : at::cat(attended, -2);
  all = all.view({x.size(0), pixels, x.size(1)}).transpose(1, 2).reshape(x.sizes());
  return x + proj_out.forward(tf32 ? all.contiguous(norm.compute.layout()) : all);
}

namespace {

// The steps of a pass, with whole maps or with strips of them. Each may take seconds on a CPU.
struct Steps {
  const std::optional<VaeStrips>& strips;

  Tensor block(const VaeResBlock& block, Tensor x) const {
    check_interrupted();
    return strips ? vae_strips::res_block(block, std::move(x), *strips) : block.forward(x);
  }
  Tensor attention(const VaeAttention& attention, const Tensor& x) const {
    check_interrupted();
    if (!strips) return attention.forward(x);
    return attention.forward(x, vae_strips::attention_queries(x, *strips));
  }
  // One zero column right and one row below, then stride 2 without padding.
  Tensor downsample(const VaeConv& conv, Tensor x) const {
    check_interrupted();
    if (strips) return vae_strips::downsample(conv, x, *strips);
    x = at::constant_pad_nd(x, {0, 1, 0, 1});
    return conv.forward(x, 2);
  }
  Tensor upsample(const VaeConv& conv, Tensor x) const {
    check_interrupted();
    if (strips) return vae_strips::upsample(conv, x, *strips);
    x = at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
    return conv.forward(x);
  }
  Tensor out(const VaeNorm& norm, const VaeConv& conv, Tensor x) const {
    check_interrupted();
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
  const Tf32Scope precision(compute.tf32);
  Tensor h = encoder.conv_in.forward(image.contiguous(compute.layout()));
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
  return steps.out(encoder.norm_out, encoder.conv_out, std::move(h)).contiguous();
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
  const Tf32Scope precision(compute.tf32);
  Tensor h = latent / config.scale_factor + config.shift_factor;
  h = decoder.conv_in.forward(h.contiguous(compute.layout()));
  h = seen(observer, "decoder.conv_in", std::move(h));
  h = run_mid(decoder.mid, std::move(h), steps, observer, "decoder");
  for (std::size_t i = decoder.up.size(); i-- > 0;) {
    for (const VaeResBlock& block : decoder.up[i].block) h = steps.block(block, std::move(h));
    if (!decoder.up[i].resample) continue;
    h = seen(observer, fmt::format("decoder.up.{}.upsample", i),
             steps.upsample(*decoder.up[i].resample, std::move(h)));
  }
  return steps.out(decoder.norm_out, decoder.conv_out, std::move(h)).contiguous();
}

}  // namespace diptych

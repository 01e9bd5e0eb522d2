#include "lib/models/wan_vae/blocks.h"

#include "lib/ops/ops.h"

namespace diptych {
namespace {

constexpr std::int64_t kHistory = 2;  // frames that a kernel of three sees before its own

Tensor frames_as_clip(const Tensor& x) {  // [n, h, w, c] -> [1, c, n, h, w]
  return x.permute({3, 0, 1, 2}).unsqueeze(0);
}
Tensor clip_as_frames(const Tensor& x) {
  return x.squeeze(0).permute({1, 2, 3, 0}).contiguous();
}
Tensor frames_as_images(const Tensor& x) {  // [n, h, w, c] -> [n, c, h, w]
  return x.permute({0, 3, 1, 2});
}
Tensor images_as_frames(const Tensor& x) {
  return x.permute({0, 2, 3, 1}).contiguous();
}

// Into the layout that the convolutions want; good within a Weights::ReadAhead, too.
Tensor load_weight(const Weights& weights, at::IntArrayRef shape, at::MemoryFormat layout) {
  Tensor weight = at::empty(shape, weights.options(), layout);
  weights.read("weight", shape, weight);
  return weight;
}

}  // namespace

void WanVaeHistory::begin_chunk(bool last) {
  first_ = !started_;
  started_ = true;
  last_ = last;
  next_ = 0;
}

Tensor& WanVaeHistory::slot() {
  if (next_ == slots_.size()) slots_.emplace_back();
  return slots_[next_];
}

Tensor WanVaeHistory::room_behind(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const Tensor& before = slot();
  if (!before.defined() && sizes[0] == 1) return at::empty(sizes, options);
  Tensor frames = at::empty({kHistory + sizes[0], sizes[1], sizes[2], sizes[3]}, options);
  Tensor head = frames.narrow(0, 0, kHistory);
  if (before.defined()) {
    head.copy_(before);
  } else {
    head.zero_();
  }
  return frames;
}

void WanVaeHistory::keep(const Tensor& frames) {
  Tensor& kept = slot();
  ++next_;
  if (last_) {
    kept.reset();
    return;
  }
  const std::int64_t n = frames.size(0), count = std::min(n, kHistory);
  if (!kept.defined()) {
    kept = at::zeros({kHistory, frames.size(1), frames.size(2), frames.size(3)}, frames.options());
  }
  kept.narrow(0, kHistory - count, count).copy_(frames.narrow(0, n - count, count));
}

Tensor WanVaeHistory::exchange_last(const Tensor& frames) {
  Tensor& kept = slot();
  ++next_;
  const Tensor before = kept;
  kept = last_ ? Tensor() : frames.narrow(0, frames.size(0) - 1, 1).clone();
  return before;
}

void WanVaeHistory::skip() {
  slot();
  ++next_;
}

WanVaeConv WanVaeConv::load(const Weights& weights, std::int64_t out, std::int64_t in,
                            std::int64_t t, std::int64_t k) {
  return {load_weight(weights, {out, in, t, k, k}, at::MemoryFormat::ChannelsLast3d),
          weights.get("bias", {out})};
}

Tensor WanVaeConv::forward(const Tensor& x, WanVaeHistory& history) const {
  Tensor frames = history.room_behind(x.sizes(), x.options());
  frames.narrow(0, frames.size(0) - x.size(0), x.size(0)).copy_(x);
  return forward_filled(frames, history);
}

Tensor WanVaeConv::forward_filled(const Tensor& frames, WanVaeHistory& history) const {
  history.keep(frames);
  const std::int64_t taps = weight.size(2), padding = weight.size(3) / 2;
  if (frames.size(0) == 1) {  // zeros before it: the other taps add nothing
    return images_as_frames(
        at::conv2d(frames_as_images(frames), weight.select(2, taps - 1), bias, 1, padding));
  }
  return clip_as_frames(
      at::conv3d(frames_as_clip(frames), weight, bias, 1, at::IntArrayRef({0, padding, padding})));
}

Tensor WanVaeConv::forward_halved(const Tensor& frames) const {
  const std::int64_t padding = weight.size(3) / 2;
  return clip_as_frames(at::conv3d(frames_as_clip(frames), weight, bias, at::IntArrayRef({2, 1, 1}),
                                   at::IntArrayRef({0, padding, padding})));
}

WanVaeSpatialConv WanVaeSpatialConv::load(const Weights& weights, std::int64_t out,
                                          std::int64_t in) {
  return {load_weight(weights, {out, in, 3, 3}, at::MemoryFormat::ChannelsLast),
          weights.get("bias", {out})};
}

Tensor WanVaeSpatialConv::forward(const Tensor& x, std::int64_t stride) const {
  return images_as_frames(
      at::conv2d(frames_as_images(x), weight, bias, stride, stride == 1 ? 1 : 0));
}

WanVaeLinear WanVaeLinear::load(const Weights& weights, std::int64_t out, std::int64_t in,
                                std::int64_t dims) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dims), 1);
  shape[0] = out;
  shape[1] = in;
  return {weights.get("weight", shape).view({out, in}), weights.get("bias", {out})};
}

Tensor WanVaeLinear::forward(const Tensor& x) const {
  return at::linear(x, weight, bias);
}

WanVaeNorm WanVaeNorm::load(const Weights& weights, std::int64_t channels, KernelPolicy kernels,
                            std::int64_t dims) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dims), 1);
  shape[0] = channels;
  return {weights.get("gamma", shape).view({channels}), kernels};
}

Tensor WanVaeNorm::forward(const Tensor& x) const {
  // With the clamp of the sum of squares softened into an addition, an RMS norm.
  const auto channels = gamma.size(0);
  const double eps = 1e-24 / static_cast<double>(channels);
  return rms_norm(x.reshape({-1, channels}), gamma, eps, kernels).view(x.sizes());
}

void WanVaeNorm::silu_into(const Tensor& x, const Tensor& out) const {
  // Frame by frame, so that between the two steps one frame is held and not the map.
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    Tensor frame = out.select(0, i);
    at::silu_out(frame, forward(x.select(0, i)));
  }
}

Tensor wan_vae_norm_silu_conv(const WanVaeNorm& norm, const WanVaeConv& conv, Tensor x,
                              WanVaeHistory& history) {
  const Tensor frames = history.room_behind(x.sizes(), x.options());
  norm.silu_into(x, frames.narrow(0, frames.size(0) - x.size(0), x.size(0)));
  x.reset();
  return conv.forward_filled(frames, history);
}

WanVaeResidualBlock WanVaeResidualBlock::load(const Weights& w, const WanVaeBlockNames& names,
                                              std::int64_t in, std::int64_t out,
                                              KernelPolicy kernels) {
  WanVaeResidualBlock block;
  block.norm1 = WanVaeNorm::load(w.scope(names.norm1), in, kernels);
  block.conv1 = WanVaeConv::load(w.scope(names.conv1), out, in, 3, 3);
  block.norm2 = WanVaeNorm::load(w.scope(names.norm2), out, kernels);
  block.conv2 = WanVaeConv::load(w.scope(names.conv2), out, out, 3, 3);
  if (in != out) block.shortcut = WanVaeLinear::load(w.scope(names.shortcut), out, in);
  return block;
}

Tensor WanVaeResidualBlock::forward(const Tensor& x, WanVaeHistory& history) const {
  // Step by step: a temporary of a nested call would live to the end of the whole expression.
  Tensor h = wan_vae_norm_silu_conv(norm1, conv1, x, history);
  h = wan_vae_norm_silu_conv(norm2, conv2, std::move(h), history);
  return h.add_(shortcut ? shortcut->forward(x) : x);
}

WanVaeAttention WanVaeAttention::load(const Weights& w, std::int64_t channels,
                                      KernelPolicy kernels) {
  return {WanVaeNorm::load(w.scope("norm"), channels, kernels, 3),
          WanVaeLinear::load(w.scope("to_qkv"), 3 * channels, channels, 4),
          WanVaeLinear::load(w.scope("proj"), channels, channels, 4)};
}

Tensor WanVaeAttention::forward(const Tensor& x) const {
  const std::int64_t n = x.size(0), channels = x.size(3);
  const Tensor qkv = to_qkv.forward(norm.forward(x)).view({n, 1, -1, 3 * channels});
  const auto part = [&](std::int64_t i) { return qkv.narrow(3, i * channels, channels); };
  const Tensor attended = at::scaled_dot_product_attention(part(0), part(1), part(2));
  return proj.forward(attended.reshape(x.sizes())).add_(x);
}

}  // namespace diptych

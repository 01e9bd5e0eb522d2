#include "lib/models/wan_vae/blocks.h"

#include <algorithm>
#include <utility>

#include "lib/ops/conv3d.h"
#include "lib/ops/ops.h"
#include "lib/ops/rms_norm_silu.h"
#include "lib/ops/split_products.h"

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
Tensor load_weight(const Weights& weights, at::IntArrayRef shape, at::MemoryFormat layout,
                   bool tf32) {
  Tensor weight = at::empty(shape, wan_vae_conv_options(weights, tf32), layout);
  if (tf32) {
    weights.get_then("weight", shape, [weight](const Tensor& read) { weight.copy_(read); });
  } else {
    weights.read("weight", shape, weight);
  }
  return weight;
}

// `convolution` of x, the weight and the bias (undefined: none). Not every CPU's convolution has
// float16: there it is of the same values in float32, and rounded.
template <class Convolution>
Tensor in_float16_too(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Convolution& convolution) {
  if (!x.is_cpu() || x.scalar_type() != at::kHalf) return convolution(x, weight, bias);
  const auto wide = [](const Tensor& part) { return part.defined() ? part.to(at::kFloat) : part; };
  return convolution(wide(x), wide(weight), wide(bias)).to(at::kHalf);
}

// In float32 on the CPU by oneDNN, which makes the same bits of a row whatever the other rows are.
// Left alone, libtorch takes another kernel for small maps, which does not.
Tensor convolve(const Tensor& x, const Tensor& weight, const Tensor& bias, at::IntArrayRef stride,
                at::IntArrayRef padding) {
  const std::vector<std::int64_t> one(stride.size(), 1), zero(stride.size(), 0);
  if (x.is_cpu() && x.scalar_type() == at::kFloat && at::globalContext().userEnabledMkldnn())
    return at::mkldnn_convolution(x, weight, bias, padding, stride, one, 1);
  return at::convolution(x, weight, bias, stride, padding, one, false, zero, 1);
}

// frames [n, h, w, in] -> [n, h', w', out], padded by so many rows and columns.
Tensor convolve_images(const Tensor& frames, const Tensor& weight, const Tensor& bias,
                       std::int64_t stride, std::int64_t rows, std::int64_t columns) {
  const auto convolution = [&](const Tensor& x, const Tensor& w, const Tensor& b) {
    return convolve(x, w, b, {stride, stride}, {rows, columns});
  };
  return images_as_frames(in_float16_too(frames_as_images(frames), weight, bias, convolution));
}

// frames [n, h, w, in] -> [n', h', w, out], every `stride`-th; not padded in time, and padded by so
// many rows.
Tensor convolve_clip(const Tensor& frames, const Tensor& weight, const Tensor& bias,
                     std::int64_t stride, std::int64_t rows) {
  const auto convolution = [&](const Tensor& x, const Tensor& w, const Tensor& b) {
    return convolve(x, w, b, {stride, 1, 1}, {0, rows, weight.size(4) / 2});
  };
  return clip_as_frames(in_float16_too(frames_as_clip(frames), weight, bias, convolution));
}

}  // namespace

WanVaePrecision WanVaePrecision::on(at::Device device, KernelPolicy kernels) const {
  WanVaePrecision here = *this;
  here.conv3d = has_conv3d_kernels(at::TensorOptions(device).dtype(products), kernels);
  here.parts = device.is_cuda() && is_tf32();
  return here;
}

at::TensorOptions wan_vae_conv_options(const Weights& weights, bool tf32) {
  return tf32 ? weights.options().dtype(WanVaePrecision::tf32().products) : weights.options();
}

Tensor wan_vae_conv_bias(const Weights& weights, std::int64_t out, bool tf32) {
  if (!tf32) return weights.get("bias", {out});
  Tensor bias = at::empty({out}, wan_vae_conv_options(weights, tf32));
  weights.get_then("bias", {out}, [bias](const Tensor& read) { bias.copy_(read); });
  return bias;
}

bool wan_vae_splits_taps(std::int64_t out, std::int64_t in, at::ScalarType products) {
  constexpr std::int64_t kMost = 128;
  return products != at::kFloat && out <= kMost && in <= kMost;
}

bool wan_vae_takes_pairs(std::int64_t out, std::int64_t in) {
  return conv3d_kernel_fits(out, in) && makes_frame_pairs(in);
}

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

Tensor WanVaeHistory::chunk_of(const Tensor& frames) {
  const std::int64_t n = frames.size(0);
  return n == 1 ? frames : frames.narrow(0, kHistory, n - kHistory);
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

Tensor WanVaeHistory::before_pairs(at::IntArrayRef sizes, const at::TensorOptions& options) {
  Tensor& kept = slot();
  if (!kept.defined()) kept = at::zeros(sizes, options);
  return kept;
}

void WanVaeHistory::keep_pairs() {
  if (last_) slot().reset();
  ++next_;
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
                            std::int64_t t, std::int64_t k, const WanVaeCompute& compute) {
  WanVaeConv conv;
  conv.bias = wan_vae_conv_bias(weights, out, compute.tf32);
  conv.in_kernel =
      has_conv3d_kernels(conv.options(), compute.kernels) && conv3d_kernel_fits(out, in);
  const at::ScalarType products = conv.bias.scalar_type();
  if (conv.in_kernel && compute.pairs && k == 3 && wan_vae_takes_pairs(out, in)) {
    conv.pairs =
        at::empty({out, in, kPairedTaps, k, k}, conv.options(), at::MemoryFormat::ChannelsLast3d);
    conv.weight = conv.pairs.narrow(2, kPairedTaps - t, t);
    weights.get_then("weight", {out, in, t, k, k}, [pairs = conv.pairs](const Tensor& read) {
      pairs.copy_(conv3d_pair_weight(read));
    });
    return conv;
  }
  if (conv.in_kernel || !conv.bias.is_cuda() || k == 1 || !wan_vae_splits_taps(out, in, products)) {
    conv.weight =
        load_weight(weights, {out, in, t, k, k}, at::MemoryFormat::ChannelsLast3d, compute.tf32);
    return conv;
  }
  for (std::int64_t i = 0; i < t; ++i)
    conv.taps.push_back(at::empty({out, in, k, k}, conv.options(), at::MemoryFormat::ChannelsLast));
  weights.get_then("weight", {out, in, t, k, k}, [taps = conv.taps](const Tensor& read) {
    for (std::size_t i = 0; i < taps.size(); ++i)
      taps[i].copy_(read.select(2, static_cast<std::int64_t>(i)));
  });
  return conv;
}

void WanVaeConv::split_taps() {
  for (std::int64_t i = 0; i < weight.size(2); ++i)
    taps.push_back(weight.select(2, i).contiguous(at::MemoryFormat::ChannelsLast));
  weight.reset();
}

WanVaeConv::Room WanVaeConv::room_for(at::IntArrayRef sizes, WanVaeHistory& history,
                                      bool in_pairs) const {
  const std::int64_t halo = history.band_of(kernel_rows()) == nullptr ? 0 : 1;
  const std::int64_t n = sizes[0], h = sizes[1] + 2 * halo, w = sizes[2], c = sizes[3];
  const auto inner = [&](const Tensor& frames) { return frames.narrow(1, halo, sizes[1]); };
  if (in_pairs) {
    const Tensor frames = at::empty({2 * n, h, w, c}, options());
    return {frames, inner(frames), inner(history.before_pairs({kHistory, h, w, c}, options()))};
  }
  const Tensor frames = history.room_behind({n, h, w, c}, options());
  return {frames, inner(WanVaeHistory::chunk_of(frames))};
}

Tensor WanVaeConv::forward(const Tensor& x, WanVaeHistory& history) const {
  const Room room = room_for(x.sizes(), history, /*in_pairs=*/false);
  room.x.copy_(x);
  const std::vector<Tensor> parts = forward_filled(room, history);
  Tensor sum = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) sum.add_(parts[i]);
  return sum;
}

std::vector<Tensor> WanVaeConv::forward_filled(const Room& room, WanVaeHistory& history) const {
  const std::int64_t rows = pass_on(room, history);
  if (in_kernel) return {convolve_in_kernel(room, rows, {})};
  return convolve(room.frames, rows);
}

bool WanVaeConv::adds(at::ScalarType maps) const {
  return in_kernel && (maps == dtype() || (maps == at::kFloat && dtype() == at::kHalf));
}

Tensor WanVaeConv::add_filled(const Room& room, const Tensor& map, WanVaeHistory& history) const {
  return convolve_in_kernel(room, pass_on(room, history), map);
}

std::int64_t WanVaeConv::pass_on(const Room& room, WanVaeHistory& history) const {
  const bool in_pairs = room.before.defined();
  const WanVaeBand* band = history.band_of(kernel_rows());
  if (band != nullptr)
    band->fill_halo(in_pairs ? room.frames : WanVaeHistory::chunk_of(room.frames));
  if (in_pairs) {
    history.keep_pairs();
  } else {
    history.keep(room.frames);
  }
  return band == nullptr ? kernel_rows() / 2 : 0;
}

Tensor WanVaeConv::convolve_in_kernel(const Room& room, std::int64_t rows,
                                      const Tensor& shortcut) const {
  const bool in_pairs = room.before.defined();
  const at::ScalarType dtype = (shortcut.defined() ? shortcut : room.frames).scalar_type();
  // [1, out, t, k, k, in]; of one frame, behind zeros, the last tap.
  Tensor packed = (in_pairs ? pairs : weight).permute({0, 2, 3, 4, 1}).unsqueeze(0);
  if (room.frames.size(0) == 1) packed = packed.narrow(2, packed.size(2) - 1, 1);
  return conv3d(room.frames, {.weight = packed,
                              .bias = bias,
                              .row_padding = rows,
                              .column_padding = kernel_rows() / 2,
                              .pairs = in_pairs,
                              .shortcut = shortcut,
                              .dtype = dtype});
}

std::vector<Tensor> WanVaeConv::convolve(const Tensor& frames, std::int64_t rows) const {
  if (frames.size(0) == 1) {  // zeros before it: the other taps add nothing
    const Tensor last = taps.empty() ? weight.select(2, weight.size(2) - 1) : taps.back();
    return {convolve_images(frames, last, bias, 1, rows, last.size(3) / 2)};
  }
  if (taps.empty()) return {convolve_clip(frames, weight, bias, 1, rows)};
  const std::int64_t n = frames.size(0) - std::ssize(taps) + 1;
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < taps.size(); ++i) {
    parts.push_back(convolve_images(frames.narrow(0, static_cast<std::int64_t>(i), n), taps[i],
                                    i == 0 ? bias : Tensor(), 1, rows, taps[i].size(3) / 2));
  }
  return parts;
}

Tensor WanVaeConv::forward_halved(const Tensor& frames) const {
  return convolve_clip(frames, weight, bias, 2, kernel_rows() / 2);
}

WanVaeSpatialConv WanVaeSpatialConv::load(const Weights& weights, std::int64_t out, std::int64_t in,
                                          bool tf32) {
  return {load_weight(weights, {out, in, 3, 3}, at::MemoryFormat::ChannelsLast, tf32),
          wan_vae_conv_bias(weights, out, tf32)};
}

Tensor WanVaeSpatialConv::forward(const Tensor& x, std::int64_t stride) const {
  const std::int64_t padding = stride == 1 ? 1 : 0;
  return convolve_images(x, weight, bias, stride, padding, padding);
}

Tensor WanVaeSpatialConv::forward_band(const Tensor& x) const {
  return convolve_images(x, weight, bias, 1, 0, 1);
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

Tensor WanVaeLinear::forward(const Tensor& x, at::ScalarType products) const {
  if (!x.is_cuda() || x.scalar_type() == products) return forward(x);
  return linear_in_parts(x, weight, bias, products);
}

WanVaeNorm WanVaeNorm::load(const Weights& weights, std::int64_t channels, KernelPolicy kernels,
                            std::int64_t dims) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(dims), 1);
  shape[0] = channels;
  return {weights.get("gamma", shape).view({channels}), kernels};
}

// With the clamp of the sum of squares softened into an addition, an RMS norm.
double WanVaeNorm::eps() const {
  return 1e-24 / static_cast<double>(gamma.size(0));
}

Tensor WanVaeNorm::forward(const Tensor& x) const {
  return rms_norm(x.reshape({-1, gamma.size(0)}), gamma, eps(), kernels).view(x.sizes());
}

void WanVaeNorm::silu_into(const WanVaeConv::Room& room, const Tensor& sum,
                           const WanVaeSum& x) const {
  if (!room.before.defined())
    return rms_norm_silu_out(room.x, sum, {x.map, x.parts}, {gamma, eps()}, kernels);
  Tensor one = sum;  // what pairs are made of
  if (sum.defined()) {
    rms_norm_silu_out({}, sum, {x.map, x.parts}, {}, kernels);
  } else if (!x.map.defined() && x.parts.size() == 1) {
    one = x.parts[0];
  } else {
    one = wan_vae_total(x, gamma.scalar_type(), kernels);
  }
  rms_norm_silu_pairs_out(room.x, room.before, one, {gamma, eps()}, kernels);
}

at::IntArrayRef WanVaeSum::sizes() const {
  return map.defined() ? map.sizes() : parts.at(0).sizes();
}

Tensor wan_vae_total(WanVaeSum x, at::ScalarType dtype, KernelPolicy kernels) {
  if (x.parts.empty()) return x.map.to(dtype);
  if (!x.map.defined() && x.parts.size() == 1) return x.parts[0].to(dtype);
  const at::TensorOptions options = x.parts[0].options().dtype(dtype);
  const bool to_map =
      x.map.defined() ? x.map.scalar_type() == dtype : x.parts[0].scalar_type() != dtype;
  Tensor total;
  if (to_map) {
    total = x.owned ? x.map : at::empty(x.sizes(), options);
    rms_norm_silu_out({}, total, {x.map, x.parts}, {}, kernels);
  } else {
    total = at::empty(x.sizes(), options);
    rms_norm_silu_out(total, {}, {x.map, x.parts}, {}, kernels);
  }
  return total;
}

WanVaeSum wan_vae_norm_silu_conv(const WanVaeNorm& norm, const WanVaeConv& conv, WanVaeSum x,
                                 WanVaeHistory& history) {
  const WanVaeConv::Room room = conv.room_for(x.sizes(), history);
  norm.silu_into(room, {}, x);
  x = {};
  return {{}, conv.forward_filled(room, history)};
}

WanVaeResidualBlock WanVaeResidualBlock::load(const Weights& w, const WanVaeBlockNames& names,
                                              std::int64_t in, std::int64_t out,
                                              const WanVaeCompute& compute) {
  WanVaeResidualBlock block;
  block.norm1 = WanVaeNorm::load(w.scope(names.norm1), in, compute.kernels);
  block.conv1 = WanVaeConv::load(w.scope(names.conv1), out, in, 3, 3, compute);
  block.norm2 = WanVaeNorm::load(w.scope(names.norm2), out, compute.kernels);
  block.conv2 = WanVaeConv::load(w.scope(names.conv2), out, out, 3, 3, compute);
  if (in != out) block.shortcut = WanVaeLinear::load(w.scope(names.shortcut), out, in);
  return block;
}

// x is stored as it is normed: the shortcut reads it.
WanVaeSum WanVaeResidualBlock::begin(WanVaeSum& x, WanVaeHistory& history) const {
  const WanVaeConv::Room room = conv1.room_for(x.sizes(), history);
  Tensor sum;
  if (!x.parts.empty()) {
    sum = x.owned ? x.map : at::empty(x.sizes(), norm1.gamma.options());
    x.owned = true;
  }
  norm1.silu_into(room, sum, x);
  if (sum.defined()) x.map = std::move(sum);
  x.parts.clear();
  return {{}, conv1.forward_filled(room, history)};
}

WanVaeSum WanVaeResidualBlock::forward(WanVaeSum x, WanVaeHistory& history) const {
  // Step by step: a temporary of a nested call would live to the end of the whole expression.
  WanVaeSum h = begin(x, history);
  if (conv2.adds(x.map.scalar_type())) {
    const Tensor map = shortcut ? shortcut->forward(x.map, conv2.dtype()) : x.map;
    x = {};
    const WanVaeConv::Room room = conv2.room_for(h.sizes(), history);
    norm2.silu_into(room, {}, h);
    h = {};
    return {conv2.add_filled(room, map, history), {}, /*owned=*/true};
  }
  h = wan_vae_norm_silu_conv(norm2, conv2, std::move(h), history);
  h.map = shortcut ? shortcut->forward(x.map, conv2.dtype()) : x.map;
  h.owned = shortcut || x.owned;
  return h;
}

WanVaeAttention WanVaeAttention::load(const Weights& w, std::int64_t channels,
                                      const WanVaeCompute& compute) {
  const WanVaeLinear to_qkv = WanVaeLinear::load(w.scope("to_qkv"), 3 * channels, channels, 4);
  return {WanVaeNorm::load(w.scope("norm"), channels, compute.kernels, 3), to_qkv,
          WanVaeLinear::load(w.scope("proj"), channels, channels, 4),
          compute.tf32 ? WanVaePrecision::tf32().products : to_qkv.weight.scalar_type()};
}

Tensor WanVaeAttention::forward(const Tensor& x) const {
  const std::int64_t n = x.size(0), channels = x.size(3);
  const Tensor qkv = to_qkv.forward(norm.forward(x), products).view({n, -1, 3 * channels});
  Tensor attended;
  if (x.is_cuda() && products != at::kFloat) {
    attended = attend_in_parts(qkv, products).to(x.scalar_type());
  } else {
    const auto head = [&](std::int64_t i) {
      return qkv.narrow(2, i * channels, channels).unsqueeze(1);
    };
    attended = at::scaled_dot_product_attention(head(0), head(1), head(2));
  }
  return proj.forward(attended.reshape(x.sizes()), products).add_(x);
}

}  // namespace diptych

#include "lib/models/wan_vae/resample.h"

#include <array>
#include <vector>

#include "lib/ops/conv3d.h"

namespace diptych {
namespace {

// [n, h, w, times * c] -> [n, times, h, 2, w, 2, c], a view: frames out of channels, and pixels
// doubled.
Tensor spread_view(const Tensor& x, std::int64_t times) {
  const std::int64_t n = x.size(0), h = x.size(1), w = x.size(2), c = x.size(3) / times;
  const Tensor frames = x.view({n, h, w, times, c}).permute({0, 3, 1, 2, 4});
  return frames.view({n, times, h, 1, w, 1, c}).expand({n, times, h, 2, w, 2, c});
}

// [n, h, w, times * c] -> [n * times, 2 h, 2 w, c], in one pass.
Tensor spread(const Tensor& x, std::int64_t times) {
  return spread_view(x, times).reshape(
      {x.size(0) * times, 2 * x.size(1), 2 * x.size(2), x.size(3) / times});
}

// The same of a band, with its halo: [n * times, 1 + 2 h + 1, 2 w, c].
Tensor spread_band(const Tensor& x, std::int64_t times, const WanVaeBand& band) {
  const Tensor pixels = spread_view(x, times);
  const std::int64_t n = x.size(0) * times, h = 2 * x.size(1), w = 2 * x.size(2);
  const Tensor frames = at::empty({n, h + 2, w, x.size(3) / times}, x.options());
  frames.narrow(1, 1, h).view(pixels.sizes()).copy_(pixels);
  band.fill_halo(frames);
  return frames;
}

}  // namespace

WanVaeDownsample WanVaeDownsample::load(const Weights& w, std::int64_t channels, bool temporal,
                                        const WanVaeCompute& compute) {
  WanVaeDownsample down{
      WanVaeSpatialConv::load(w.scope("resample.1"), channels, channels, compute.tf32), {}};
  if (temporal)
    down.time_conv = WanVaeConv::load(w.scope("time_conv"), channels, channels, 3, 1, compute);
  return down;
}

Tensor WanVaeDownsample::forward(Tensor x, at::ScalarType maps, WanVaeHistory& history) const {
  // One zero column right and one row below.
  x = at::constant_pad_nd(x, {0, 0, 0, 1, 0, 1});
  x = resample.forward(x, 2);
  if (!time_conv) return x.to(maps);
  const Tensor before = history.exchange_last(x);
  if (!before.defined()) return x.to(maps);
  return time_conv->forward_halved(at::cat({before, x})).to(maps);
}

WanVaeUpsample WanVaeUpsample::load(const Weights& w, std::int64_t out, std::int64_t in,
                                    bool temporal, const WanVaeCompute& compute) {
  WanVaeUpsample up;
  if (temporal) up.time_conv = WanVaeConv::load(w.scope("time_conv"), 2 * in, in, 3, 1, compute);
  const Weights resample = w.scope("resample.1");
  const at::TensorOptions products = wan_vae_conv_options(resample, compute.tf32);
  if (!has_conv3d_kernels(products, compute.kernels) ||
      !conv3d_kernel_fits(out, in, temporal ? 2 : 1)) {
    up.resample = WanVaeSpatialConv::load(resample, out, in, compute.tf32);
    return up;
  }
  up.resample.bias = wan_vae_conv_bias(resample, out, compute.tf32);
  up.phases = at::empty({4, out, 1, 2, 2, in}, products);
  resample.get_then("weight", {out, in, 3, 3}, [phases = up.phases](const Tensor& read) {
    phases.copy_(wan_vae_upsample_phases(read));
  });
  return up;
}

Tensor WanVaeUpsample::forward(Tensor x, at::ScalarType maps, const Tensor& shortcut,
                               WanVaeHistory& history) const {
  std::int64_t times = 1;
  if (time_conv && history.first_chunk()) {
    history.skip();  // the second chunk sees zeros before it, not this one
  } else if (time_conv) {
    x = time_conv->forward(x, history);
    times = 2;
  }
  if (phases.defined()) return forward_phases(x, times, maps, shortcut, history);
  x = forward_doubled(x, times, history).to(maps);
  if (shortcut.defined()) wan_vae_add_repeated(x, shortcut, shortcut_frames());
  return x;
}

Tensor WanVaeUpsample::forward_phases(const Tensor& x, std::int64_t times, at::ScalarType maps,
                                      const Tensor& shortcut, WanVaeHistory& history) const {
  constexpr std::int64_t kSides = 2;
  const WanVaeBand* band = history.band_of(3);
  Tensor frames = x;
  if (band != nullptr) {
    frames = at::empty({x.size(0), x.size(1) + 2, x.size(2), x.size(3)}, x.options());
    frames.narrow(1, 1, x.size(1)).copy_(x);
    band->fill_halo(frames);
  }
  const std::int64_t all = kSides * kSides * shortcut_frames();
  return conv3d(frames, {.weight = phases,
                         .bias = resample.bias,
                         .row_padding = band == nullptr ? 1 : 0,
                         .column_padding = 1,
                         .frame_phases = times,
                         .side_phases = kSides,
                         .shortcut = shortcut,
                         .shortcut_first = all - kSides * kSides * times,
                         .shortcut_phases = all,
                         .dtype = maps});
}

Tensor WanVaeUpsample::forward_doubled(const Tensor& x, std::int64_t times,
                                       WanVaeHistory& history) const {
  const WanVaeBand* band = history.band_of(3);
  return band == nullptr ? resample.forward(spread(x, times))
                         : resample.forward_band(spread_band(x, times, *band));
}

Tensor wan_vae_upsample_phases(const Tensor& weight) {
  // Along rows or columns: the taps before, at and behind a pixel's first half fall on the pixel
  // before and on its own twice; of its second half on its own twice and on the one behind.
  const auto along = [](const Tensor& taps, std::int64_t dim) {
    const auto tap = [&](std::int64_t i) { return taps.select(dim, i); };
    return std::array{at::stack({tap(0), tap(1) + tap(2)}, dim),
                      at::stack({tap(0) + tap(1), tap(2)}, dim)};
  };
  std::vector<Tensor> phases;
  for (const Tensor& rows : along(weight.to(at::kFloat), 2)) {
    for (const Tensor& both : along(rows, 3)) phases.push_back(both.permute({0, 2, 3, 1}));
  }
  return at::stack(phases).unsqueeze(2);
}

Tensor wan_vae_average_down(const Tensor& x, std::int64_t frames) {
  const std::int64_t n = x.size(0), h = x.size(1) / 2, w = x.size(2) / 2, c = x.size(3);
  Tensor means = x.view({n, h, 2, w, 2, c}).mean({2, 4});  // [n, h, w, c]
  if (frames == 1) return means;
  const std::int64_t missing = (frames - n % frames) % frames;
  if (missing > 0) means = at::constant_pad_nd(means, {0, 0, 0, 0, 0, 0, missing, 0});
  return means.view({-1, frames, h, w, c}).permute({0, 2, 3, 4, 1}).reshape({-1, h, w, c * frames});
}

void wan_vae_add_repeated(Tensor out, const Tensor& x, std::int64_t frames) {
  const std::int64_t n = x.size(0), h = x.size(1), w = x.size(2), c = out.size(3);
  const std::int64_t step = x.size(3) / c, there = out.size(0) / n, phases = 4 * frames;
  const Tensor places = out.view({n, there, h, 2, w, 2, c});
  for (std::int64_t phase = 4 * (frames - there); phase < phases; ++phase) {
    const std::int64_t frame = phase / 4 - (frames - there), row = phase / 2 % 2,
                       column = phase % 2;
    // Output channel o takes channel (o * phases + phase) / (phases / step) of x.
    places.select(5, column).select(3, row).select(1, frame).add_(
        x.slice(3, phase * step / phases, std::nullopt, step));
  }
}

}  // namespace diptych

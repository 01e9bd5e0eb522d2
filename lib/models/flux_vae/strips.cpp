#include "lib/models/flux_vae/strips.h"

#include <functional>

#include "lib/base/interrupt.h"
#include "lib/ops/group_norm.h"

namespace diptych::vae_strips {
namespace {

// Rows of a strip, given the bytes that one row of its input and output takes. Even, so that
// halves and doubles of strips meet.
std::int64_t strip_rows(std::int64_t row_bytes, const VaeStrips& strips) {
  return std::max<std::int64_t>(strips.max_bytes / row_bytes / 2 * 2, 2);
}

std::int64_t row_bytes(const Tensor& x, std::int64_t channels, std::int64_t columns) {
  return x.size(0) * channels * columns * x.element_size();
}

Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  return x.narrow(2, first, count);
}

// An unset map beside x, laid out as its pass wants it.
Tensor map_beside(const Tensor& x, std::int64_t channels, std::int64_t rows, std::int64_t columns,
                  const VaeCompute& compute) {
  return at::empty({x.size(0), channels, rows, columns}, x.options(), compute.layout());
}

// GroupNorm with the statistics of the whole map, as one factor and one offset a channel; in TF32
// with silu in one pass.
class WholeMapNorm {
 public:
  WholeMapNorm(const VaeNorm& norm, const Tensor& x) : compute_(norm.compute) {
    if (compute_.tf32) {
      table_ = group_norm_table(x, {norm.weight, norm.bias, VaeNorm::kGroups, VaeNorm::kEps},
                                compute_.kernels);
      return;
    }
    const std::int64_t n = x.size(0), channels = x.size(1);
    const auto [variance, mean] = at::var_mean(x.reshape({n, VaeNorm::kGroups, -1}), {2},
                                               /*correction=*/0, /*keepdim=*/true);
    const Tensor inverse = (variance + VaeNorm::kEps).rsqrt();  // [n, groups, 1]
    const Tensor factor = inverse * norm.weight.view({1, VaeNorm::kGroups, -1});
    shift_ = (norm.bias.view({1, VaeNorm::kGroups, -1}) - mean * factor).view({n, channels, 1, 1});
    scale_ = factor.view({n, channels, 1, 1});
  }
  void apply(const Tensor& rows, Tensor out) const {
    if (compute_.tf32) {
      group_norm_silu_out(out, rows, table_, {.round_to_tf32 = true}, compute_.kernels);
      return;
    }
    at::addcmul_out(out, shift_, rows, scale_);
  }

 private:
  VaeCompute compute_;
  Tensor table_;          // of tf32
  Tensor scale_, shift_;  // else, [n, channels, 1, 1]
};

using PutRows = std::function<void(std::int64_t first, const Tensor& rows)>;

// conv(silu(norm(x))) for a 3x3 conv, strip by strip from the top. `put` may overwrite the rows of
// x that its strip stands for.
void for_each_strip(const VaeNorm& norm, const VaeConv& conv, const Tensor& x,
                    const VaeStrips& strips, const PutRows& put) {
  const WholeMapNorm normalise(norm, x);
  const std::int64_t channels = x.size(1), height = x.size(2), width = x.size(3);
  const std::int64_t step = strip_rows(row_bytes(x, channels + conv.weight.size(0), width), strips);
  Tensor above;  // the row above the strip, as it was
  for (std::int64_t first = 0; first < height; first += step) {
    check_interrupted();
    const std::int64_t count = std::min(step, height - first);
    const std::int64_t below = first + count < height ? 1 : 0;
    // Beyond the map's border stay zeros; silu keeps them.
    Tensor slab = map_beside(x, channels, count + 2, width, norm.compute).zero_();
    if (above.defined()) normalise.apply(above, rows_of(slab, 0, 1));
    normalise.apply(rows_of(x, first, count + below), rows_of(slab, 1, count + below));
    above = rows_of(x, first + count - 1, 1).clone();
    if (!norm.compute.tf32) at::silu_(slab);
    put(first, at::conv2d(slab, conv.weight, conv.bias, 1, at::IntArrayRef({0, 1})));
  }
}

}  // namespace

Tensor res_block(const VaeResBlock& block, Tensor x, const VaeStrips& strips) {
  Tensor h = normed_conv(block.norm1, block.conv1, x, strips);
  if (!block.nin_shortcut) {
    for_each_strip(block.norm2, block.conv2, h, strips,
                   [&](std::int64_t first, const Tensor& rows) {
                     rows_of(x, first, rows.size(2)).add_(rows);
                   });
    return x;
  }
  for_each_strip(block.norm2, block.conv2, h, strips, [&](std::int64_t first, const Tensor& rows) {
    const Tensor shortcut = block.nin_shortcut->forward(rows_of(x, first, rows.size(2)));
    Tensor done = rows_of(h, first, rows.size(2));
    at::add_out(done, rows, shortcut);
  });
  return h;
}

Tensor normed_conv(const VaeNorm& norm, const VaeConv& conv, const Tensor& x,
                   const VaeStrips& strips) {
  const Tensor out = map_beside(x, conv.weight.size(0), x.size(2), x.size(3), conv.compute);
  for_each_strip(norm, conv, x, strips, [&](std::int64_t first, const Tensor& rows) {
    rows_of(out, first, rows.size(2)).copy_(rows);
  });
  return out;
}

Tensor upsample(const VaeConv& conv, const Tensor& x, const VaeStrips& strips) {
  const std::int64_t height = x.size(2), width = x.size(3), out_channels = conv.weight.size(0);
  const Tensor out = map_beside(x, out_channels, 2 * height, 2 * width, conv.compute);
  const std::int64_t step =
      strip_rows(2 * row_bytes(x, x.size(1) + out_channels, 2 * width), strips);
  for (std::int64_t first = 0; first < height; first += step) {
    check_interrupted();
    const std::int64_t count = std::min(step, height - first);
    const std::int64_t above = first > 0 ? 1 : 0, below = first + count < height ? 1 : 0;
    const Tensor source = rows_of(x, first - above, above + count + below);
    const Tensor doubled = at::upsample_nearest2d(source, {2 * source.size(2), 2 * width});
    // Of the neighbours' doubled rows only the nearest is seen; beyond the border are zeros.
    const Tensor seen = rows_of(doubled, above, above + 2 * count + below);
    const Tensor slab = at::constant_pad_nd(seen, {0, 0, 1 - above, 1 - below});
    rows_of(out, 2 * first, 2 * count)
        .copy_(at::conv2d(slab, conv.weight, conv.bias, 1, at::IntArrayRef({0, 1})));
  }
  return out;
}

Tensor downsample(const VaeConv& conv, const Tensor& x, const VaeStrips& strips) {
  const std::int64_t height = x.size(2) / 2, width = x.size(3), out_channels = conv.weight.size(0);
  const Tensor out = map_beside(x, out_channels, height, width / 2, conv.compute);
  const std::int64_t step = strip_rows(row_bytes(x, 2 * x.size(1) + out_channels, width), strips);
  for (std::int64_t first = 0; first < height; first += step) {
    check_interrupted();
    const std::int64_t count = std::min(step, height - first);
    const std::int64_t below = first + count < height ? 1 : 0;
    const Tensor seen = rows_of(x, 2 * first, 2 * count + below);
    rows_of(out, first, count)
        .copy_(conv.forward(at::constant_pad_nd(seen, {0, 1, 0, 1 - below}), 2));
  }
  return out;
}

std::int64_t attention_queries(const Tensor& x, const VaeStrips& strips) {
  return std::max<std::int64_t>(4 * strips.max_bytes / row_bytes(x, 1, x.size(2) * x.size(3)), 1);
}

}  // namespace diptych::vae_strips

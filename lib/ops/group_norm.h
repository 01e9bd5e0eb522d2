// GroupNorm with SiLU behind it on feature maps in channels_last, float32: the statistics of whole
// maps first, then the maps or some rows of them.
#pragma once

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych {

struct GroupNorm {
  Tensor weight, bias;  // float32 [channels]
  std::int64_t groups = 0;
  double eps = 0;
};

// GroupNorm as a factor and an offset of each channel. x float32 [n, channels, h, w], channels_last
// -> [n, 2, channels].
Tensor group_norm_table(const Tensor& x, const GroupNorm& norm, KernelPolicy policy);

struct GroupNormSilu {
  bool silu = true;
  bool round_to_tf32 = false;  // what is handed on to a product in TF32
};
// y = silu(x * factor + offset) with the table of the maps that x is of, or of which it is some
// rows. x and y float32 [n, channels, rows, w], channels_last but for the first stride; y may be x.
void group_norm_silu_out(const Tensor& y, const Tensor& x, const Tensor& table,
                         const GroupNormSilu& options, KernelPolicy policy);

}  // namespace diptych

// Convolutions of maps in channels_last, [n, h, w, c], by kernels/conv3d.
#pragma once

#include <optional>

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych {

// Whether conv3d() has kernels for maps of these options: of 16 bits, on a device of compute
// capability 9.0.
bool has_conv3d_kernels(const at::TensorOptions& options, KernelPolicy policy);
// Whether they take so many channels, and are faster than cuDNN: their tiles are filled.
bool conv3d_kernel_fits(std::int64_t out, std::int64_t in, std::int64_t frame_phases = 1);

// Of stride 1; kernels/conv3d/conv3d.h says what phases and pairs are.
struct Conv3d {
  // [side_phases^2, out, t, rows, columns, in], packed but between the outputs; no view of fewer
  // outputs than there are.
  Tensor weight;
  Tensor bias;                                       // [out], or undefined
  std::int64_t row_padding = 0, column_padding = 0;  // zeros on either side
  std::int64_t frame_phases = 1, side_phases = 1;    // 1 or 2 each
  bool pairs = false;                                // of frames; then t is 5, and no phases
  // Added to the result; undefined: nothing. [n, h', w', c] in the sizes of a phase, below: to
  // output i of a phase, counted through frames, rows and columns from shortcut_first on, the
  // channel (i * shortcut_phases + phase) * (c / out) / shortcut_phases.
  Tensor shortcut{};
  std::int64_t shortcut_first = 0, shortcut_phases = 1;
  // Of the result and the shortcut; undefined: x's. Beside float16 it may be float32.
  std::optional<at::ScalarType> dtype{};
};

// x [n + t - 1, h, w, frame_phases * in], contiguous -> [n * frame_phases, side_phases * h',
// side_phases * w', out], where h' = h + 2 * row_padding - rows - side_phases + 2, likewise w'.
// With pairs x [4 * pairs, h, w, in] -> [2 * pairs, ...]. Sums are float32 and are rounded to x's
// dtype once, and to that of the result where the shortcut is added. In ATen where there are no
// kernels for x. Throws c10::Error for operands that do not meet, and InputError for what kernels
// refuse (conv3d_kernel_fits() says when they do not).
Tensor conv3d(const Tensor& x, const Conv3d& conv);
// Taps in time [out, in, 3, rows, columns] -> what pairs are multiplied with, float32 [out, in,
// kPairedTaps, rows, columns], of which the last three are the taps themselves.
inline constexpr std::int64_t kPairedTaps = 5;
Tensor conv3d_pair_weight(const Tensor& weight);

}  // namespace diptych

// In which order the vision tower of Qwen2.5-VL takes the patches of a picture or clip, which of
// them see each other, and by which angles they are rotated. Pure functions of the sizes.
// Port of bytedance/Lance @4baeee0, modeling/vit/qwen2_5_vl_vit.py (rot_pos_emb, get_window_index);
// specs: lance.md sections 6.5 and 7.
#pragma once

#include <cstdint>
#include <vector>

#include "lib/models/qwen/vision_config.h"
#include "lib/tensor/types.h"

namespace diptych {

// In patches. A slice is what one temporal patch covers: two frames.
struct VisionGrid {
  std::int64_t t = 0, h = 0, w = 0;
  std::int64_t slice() const { return h * w; }
  std::int64_t patches() const { return t * h * w; }
};

// Of frames of that size in pixels. Frames that do not fill a temporal patch count as one. Throws
// c10::Error for sides that are no multiple of pixels_per_group(), and without any frame.
VisionGrid vision_grid(std::int64_t frames, std::int64_t height, std::int64_t width,
                       const QwenVisionConfig& config);

// frames [in_channels, T, H, W], any floating dtype -> [patches, patch_width], of the same dtype.
// The rows are in the order (slice, row of groups, column of groups, row in the group, column in
// the group), the columns (channel, frame, row, column). The last frame is repeated until a
// temporal patch is full: a picture is seen twice. Throws as vision_grid().
Tensor vision_patches(const Tensor& frames, const QwenVisionConfig& config);

// The windows, slice by slice, row by row. Those at the right and lower edge may be smaller.
struct VisionWindows {
  Tensor order;  // int64 [groups], CPU: the group that stands at each place in window order
  std::vector<std::int64_t> lengths;  // patches in each window
};
VisionWindows vision_windows(const VisionGrid& grid, const QwenVisionConfig& config);

// [row * f_i | column * f_i] with f_i = 10000^(-4i / head_dim), i < head_dim / 4, which both halves
// of a head share; row and column in patches, within a slice. float32 [patches, head_dim / 2], CPU,
// in the order of vision_patches(). In bfloat16 the official code rounds frequencies, positions and
// products to it: so does `dtype`.
Tensor vision_angles(const VisionGrid& grid, const QwenVisionConfig& config, at::ScalarType dtype);

}  // namespace diptych

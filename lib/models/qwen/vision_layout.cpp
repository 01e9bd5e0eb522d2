#include "lib/models/qwen/vision_layout.h"

#include <algorithm>

#include "lib/ops/ops.h"

namespace diptych {

VisionGrid vision_grid(std::int64_t frames, std::int64_t height, std::int64_t width,
                       const QwenVisionConfig& config) {
  const std::int64_t step = config.pixels_per_group(), temporal = config.temporal_patch_size;
  TORCH_CHECK(frames > 0 && height > 0 && width > 0 && height % step == 0 && width % step == 0,
              "[vision_grid] ", frames, " frames of ", width, " x ", height,
              " pixels, expected sides that are multiples of ", step);
  return {(frames + temporal - 1) / temporal, height / config.patch_size,
          width / config.patch_size};
}

Tensor vision_patches(const Tensor& frames, const QwenVisionConfig& config) {
  TORCH_CHECK(frames.dim() == 4 && frames.size(0) == config.in_channels, "[vision_patches] frames ",
              frames.sizes(), ", expected ", config.in_channels, " channels first");
  const VisionGrid grid = vision_grid(frames.size(1), frames.size(2), frames.size(3), config);
  const std::int64_t temporal = config.temporal_patch_size, merge = config.spatial_merge_size,
                     patch = config.patch_size, missing = grid.t * temporal - frames.size(1);
  Tensor whole = frames;
  if (missing > 0) {
    const Tensor last = frames.narrow(1, frames.size(1) - 1, 1);
    whole = at::cat({frames, last.expand({-1, missing, -1, -1})}, 1);
  }
  return whole
      .reshape({config.in_channels, grid.t, temporal, grid.h / merge, merge, patch, grid.w / merge,
                merge, patch})
      .permute({1, 3, 6, 4, 7, 0, 2, 5, 8})
      .reshape({grid.patches(), config.patch_width()});
}

VisionWindows vision_windows(const VisionGrid& grid, const QwenVisionConfig& config) {
  const std::int64_t side = config.window_groups();
  const std::int64_t rows = grid.h / config.spatial_merge_size,
                     columns = grid.w / config.spatial_merge_size;
  std::vector<std::int64_t> order;
  VisionWindows windows;
  for (std::int64_t t = 0; t < grid.t; ++t) {
    for (std::int64_t top = 0; top < rows; top += side) {
      for (std::int64_t left = 0; left < columns; left += side) {
        const std::int64_t bottom = std::min(top + side, rows),
                           right = std::min(left + side, columns);
        for (std::int64_t row = top; row < bottom; ++row) {
          for (std::int64_t column = left; column < right; ++column)
            order.push_back((t * rows + row) * columns + column);
        }
        windows.lengths.push_back((bottom - top) * (right - left) * config.merged_patches());
      }
    }
  }
  windows.order = at::tensor(order, at::kLong);
  return windows;
}

Tensor vision_angles(const VisionGrid& grid, const QwenVisionConfig& config, at::ScalarType dtype) {
  constexpr double kTheta = 10000;  // a constant of the model's code
  const auto rounded = [dtype](const Tensor& values) { return values.to(dtype).to(at::kFloat); };
  const std::int64_t merge = config.spatial_merge_size;
  const Tensor frequencies = rounded(rope_frequencies(config.head_dim() / 2, kTheta));
  const auto angles = [&](std::int64_t positions) {  // [positions, head_dim / 4]
    const Tensor ids = rounded(at::arange(positions, at::kFloat));
    return rounded(ids.unsqueeze(1) * frequencies);
  };
  const std::int64_t quarter = config.head_dim() / 4;
  const std::vector<std::int64_t> split = {grid.h / merge, merge, grid.w / merge, merge, quarter};
  const Tensor rows = angles(grid.h).unsqueeze(1).expand({grid.h, grid.w, quarter}),
               columns = angles(grid.w).unsqueeze(0).expand({grid.h, grid.w, quarter});
  const Tensor slice = at::cat({rows.reshape(split), columns.reshape(split)}, -1)
                           .permute({0, 2, 1, 3, 4})
                           .reshape({grid.slice(), 2 * quarter});
  return slice.repeat({grid.t, 1});
}

}  // namespace diptych

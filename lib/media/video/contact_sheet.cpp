#include "lib/media/video/contact_sheet.h"

#include <algorithm>
#include <cmath>

#include "lib/media/resize.h"

namespace diptych {
namespace {

struct Grid {
  std::int64_t rows, columns, height, width;  // of a cell, in pixels
};

// As square as it gets: of all numbers of columns the one whose sheet has the shortest long side.
std::int64_t best_columns(std::int64_t cells, std::int64_t height, std::int64_t width) {
  std::int64_t best = 1, shortest = INT64_MAX;
  for (std::int64_t columns = 1; columns <= cells; ++columns) {
    const std::int64_t rows = (cells + columns - 1) / columns;
    const std::int64_t side = std::max(rows * height, columns * width);
    if (side < shortest) {
      shortest = side;
      best = columns;
    }
  }
  return best;
}

Grid make_grid(std::int64_t cells, std::int64_t height, std::int64_t width,
               const SheetLayout& layout) {
  const std::int64_t columns =
      layout.columns > 0 ? std::min(layout.columns, cells) : best_columns(cells, height, width);
  const std::int64_t rows = (cells + columns - 1) / columns;
  const auto room = [&](std::int64_t count) {
    return static_cast<double>(layout.max_side - layout.gap * (count + 1)) /
           static_cast<double>(count);
  };
  const double scale = std::min(
      {1.0, room(rows) / static_cast<double>(height), room(columns) / static_cast<double>(width)});
  const auto scaled = [&](std::int64_t side) {
    return std::max<std::int64_t>(1, std::llround(std::floor(static_cast<double>(side) * scale)));
  };
  return {rows, columns, scaled(height), scaled(width)};
}

}  // namespace

std::vector<std::int64_t> evenly_spaced(std::int64_t frames, std::int64_t wanted) {
  const std::int64_t count = std::min(frames, wanted);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < count; ++i) {
    indices.push_back(count == 1 ? 0 : (i * (frames - 1) + (count - 1) / 2) / (count - 1));
  }
  return indices;
}

Tensor contact_sheet(std::span<const Tensor> frames, const SheetLayout& layout) {
  TORCH_CHECK(!frames.empty() && layout.cells > 0 && layout.gap >= 0, "[contact_sheet] no frames");
  const std::vector<std::int64_t> shown =
      evenly_spaced(static_cast<std::int64_t>(frames.size()), layout.cells);
  const std::int64_t height = frames[0].size(0), width = frames[0].size(1), gap = layout.gap;
  const Grid grid = make_grid(static_cast<std::int64_t>(shown.size()), height, width, layout);
  constexpr std::uint8_t kGray = 32;
  const Tensor sheet =
      at::full({grid.rows * (grid.height + gap) + gap, grid.columns * (grid.width + gap) + gap, 3},
               kGray, at::kByte);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const Tensor& frame = frames[static_cast<std::size_t>(shown[i])];
    TORCH_CHECK(frame.dim() == 3 && frame.size(2) == 3 && frame.scalar_type() == at::kByte &&
                    frame.size(0) == height && frame.size(1) == width,
                "[contact_sheet] expected uint8 [", height, ", ", width, ", 3], got ",
                frame.sizes());
    const auto cell = static_cast<std::int64_t>(i);
    const std::int64_t top = gap + cell / grid.columns * (grid.height + gap),
                       left = gap + cell % grid.columns * (grid.width + gap);
    sheet.narrow(0, top, grid.height)
        .narrow(1, left, grid.width)
        .copy_(resize_bicubic(frame.to(at::kCPU), grid.height, grid.width));
  }
  return sheet;
}

Tensor contact_sheet(const Tensor& frames, const SheetLayout& layout) {
  TORCH_CHECK(frames.dim() == 4, "[contact_sheet] expected [frames, height, width, 3], got ",
              frames.sizes());
  const std::vector<Tensor> list = frames.unbind(0);
  return contact_sheet(std::span<const Tensor>(list), layout);
}

}  // namespace diptych

// One picture of some frames of a clip.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

// Up to `wanted` indices of 0 .. frames - 1, evenly spaced, the first and the last among them.
std::vector<std::int64_t> evenly_spaced(std::int64_t frames, std::int64_t wanted);

struct SheetLayout {
  std::int64_t cells = 16;       // frames that are shown, at most
  std::int64_t columns = 0;      // 0: as square a sheet as it gets
  std::int64_t gap = 4;          // pixels between cells and around them
  std::int64_t max_side = 4096;  // of the sheet; larger cells are scaled down
};

// frames: uint8 [frames, height, width, 3], or pictures of one size -> uint8 [h, w, 3], row by row.
Tensor contact_sheet(const Tensor& frames, const SheetLayout& layout = {});
Tensor contact_sheet(std::span<const Tensor> frames, const SheetLayout& layout = {});

}  // namespace diptych

// The fixed table of positions that Lance adds to its latent rows, computed for the rows that are
// asked for. specs: lance.md section 5.6. Port of bytedance/Lance @4baeee0,
// modeling/lance/modeling_utils.py (get_3d_sincos_pos_embed) and data/data_utils.py
// (get_flattened_position_ids_extrapolate_video).
#pragma once

#include <cstdint>

#include "lib/tensor/types.h"

namespace diptych {

// The table has a row for every place of `frames` x `side` x `side` latent rows.
struct LatentTable {
  std::int64_t frames = 31;  // of 121 decoded frames
  std::int64_t side = 64;

  // Rows of the table for t x h x w latent rows in row-major order -> int64 [t * h * w], CPU. As in
  // the official code, a picture wider or higher than `side` runs on into the rows behind, without
  // a word. Throws InputError where the table has no more rows.
  Tensor indices(std::int64_t t, std::int64_t h, std::int64_t w) const;
  // Their content -> float32 [t * h * w, hidden], CPU: sines and cosines of the frame, the row and
  // the column. Throws likewise, and c10::Error for an odd `hidden` or one below 12.
  Tensor rows(std::int64_t t, std::int64_t h, std::int64_t w, std::int64_t hidden) const;
};

}  // namespace diptych

// The three rotary position ids of every token Lance reads, and which of them each guidance branch
// uses. specs: lance.md sections 5.1 to 5.4; bytedance/Lance @4baeee0,
// modeling/lance/qwen2_navit.py (get_rope_index), data/common.py (shift_position_ids) and
// modeling/lance/lance.py (validation_gen_KVcache, validation_gen).
#pragma once

#include <vector>

#include "lib/pipelines/lance/layout.h"
#include "lib/tensor/types.h"

namespace diptych {

// int64 [3, tokens] on the CPU: rows t, h, w. Text counts up on all rows; a visual row (i, j, k) of
// a block is at base + (2 i, j, k); text behind it begins at one more than the largest id of the
// block.
Tensor raw_positions(const LanceLayout& layout);
// The same as the model uses them. In a sequence that generates and reads a source, the t ids of
// the ViT blocks begin at 1000, and the target has the ids of the source's latent where both have
// as many tokens. Otherwise they are raw_positions(layout).
Tensor positions(const LanceLayout& layout);

struct LanceReadSplit {
  LanceSplit split;     // of the conditional layout
  Tensor position_ids;  // int64 [3, tokens of the split]
};

// What one branch reads, in order, and the ids it reads it with.
struct LanceReading {
  std::vector<LanceReadSplit> context;
  // int64 [3, tokens]: of the target block; of an answer's first token (the next ones count up by
  // one on all rows).
  Tensor next;
};

// Which ids the unconditional branch reads its context with.
enum class LanceUncondIds {
  conditional,  // the official default (a key-value cache): what is behind the caption stays where
                // it is, and only the target has its own ids
  own,          // `--use_KVcache false`: as if there were no caption
};

LanceReading conditional_reading(const LanceLayout& layout);
// Without the caption. Equal to the conditional one where there is none.
LanceReading text_unconditional_reading(const LanceLayout& layout, LanceUncondIds ids);

}  // namespace diptych

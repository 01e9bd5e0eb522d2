// The sizes of the vision tower of Qwen2.5-VL, as its config.json gives them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace diptych {

struct QwenVisionConfig {  // config.json's names; the values are Qwen2.5-VL-3B's
  std::int64_t depth = 32;
  std::int64_t hidden_size = 1280;
  std::int64_t intermediate_size = 3420;
  std::int64_t num_heads = 16;
  std::int64_t out_hidden_size = 2048;
  std::int64_t in_channels = 3;
  std::int64_t patch_size = 14;          // pixels a side
  std::int64_t temporal_patch_size = 2;  // frames
  std::int64_t spatial_merge_size = 2;   // patches a side that become one output row
  std::int64_t window_size = 112;        // pixels a side
  std::vector<std::int64_t> fullatt_block_indexes = {7, 15, 23, 31};

  // Throws InputError naming file and key: for a missing size, a value out of range, sizes that do
  // not fit each other, and another activation.
  static QwenVisionConfig load(const std::filesystem::path& path);

  std::int64_t head_dim() const { return hidden_size / num_heads; }
  std::int64_t patch_width() const {  // 1176
    return in_channels * temporal_patch_size * patch_size * patch_size;
  }
  std::int64_t merged_patches() const { return spatial_merge_size * spatial_merge_size; }
  std::int64_t pixels_per_group() const { return patch_size * spatial_merge_size; }  // a side: 28
  std::int64_t window_groups() const { return window_size / pixels_per_group(); }    // a side: 4
  bool attends_fully(std::int64_t block) const;  // to a whole slice, not to a window
};

}  // namespace diptych

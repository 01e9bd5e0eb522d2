// The vision tower of Qwen2.5-VL: a transformer over the patches of one picture or clip at its own
// size, attention within windows and, in a few blocks, within a slice of two frames; then groups of
// 2 x 2 patches are merged into the rows that the language model reads.
// Port of bytedance/Lance @4baeee0, modeling/vit/qwen2_5_vl_vit.py, and of transformers 4.49,
// modeling_qwen2_5_vl.py; specs: lance.md sections 2.1 and 7.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lib/attention/attention.h"
#include "lib/models/qwen/vision_config.h"
#include "lib/models/qwen/vision_layout.h"
#include "lib/ops/ops.h"
#include "lib/tensor/weights.h"

namespace diptych {

struct QwenVisionBlock {
  Tensor norm1, norm2;                // [hidden]
  Tensor qkv, qkv_bias;               // [3 * hidden, hidden], [3 * hidden]
  Tensor proj, proj_bias;             // [hidden, hidden], [hidden]
  Tensor gate_up_proj, gate_up_bias;  // [2 * intermediate, hidden], [2 * intermediate]
  Tensor down_proj, down_bias;        // [hidden, intermediate], [hidden]
  static QwenVisionBlock load(const Weights& weights, const QwenVisionConfig& config);
};

struct QwenVisionMerger {
  Tensor ln_q;               // [hidden]
  Tensor inner, inner_bias;  // mlp.0: [4 * hidden, 4 * hidden], [4 * hidden]
  Tensor outer, outer_bias;  // mlp.2: [out_hidden, 4 * hidden], [out_hidden]
  static QwenVisionMerger load(const Weights& weights, const QwenVisionConfig& config);
  // x [patches, hidden] -> [patches / 4, out_hidden]
  Tensor forward(const Tensor& x, const Kernels& kernels) const;
};

// Called with the names of the golden data: "vit.patch_embed" in the order of the patches;
// "vit.blockBB" and "vit.merger" in window order; "vit.output" in the order of the groups.
using QwenVisionObserver = std::function<void(std::string_view name, const Tensor& value)>;

struct QwenVision {
  QwenVisionConfig config;
  Tensor patch_embed;  // [hidden, patch_width]
  std::vector<QwenVisionBlock> blocks;
  QwenVisionMerger merger;

  // `weights`: of the tower alone, such as vit.safetensors, or the scope "vit_model". Throws as
  // Weights::get.
  static QwenVision load(const Weights& weights, const QwenVisionConfig& config);

  // One picture or clip: patches [n, patch_width] of vision_patches(), in the model's dtype and on
  // its device -> [n / 4, out_hidden] in the order of the groups, in the model's dtype.
  Tensor forward(const Tensor& patches, const VisionGrid& grid, const AttentionBackend& attention,
                 const Kernels& kernels, const QwenVisionObserver& observer = {}) const;
};

// The most bytes that one forward() holds at once in that dtype, with its patches and its result
// but without weights, what the attention backend takes and what an allocator adds.
std::int64_t qwen_vision_bytes(const QwenVisionConfig& config, const VisionGrid& grid,
                               at::ScalarType dtype);

}  // namespace diptych

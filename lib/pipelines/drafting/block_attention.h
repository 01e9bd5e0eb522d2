// Attention of the rows of blocks that reads every length on the device, bounded by the capacity of
// the cache alone: a CUDA graph of it serves a text that grows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lib/attention/attention.h"
#include "lib/models/qwen/layer.h"
#include "lib/runtime/runtime.h"

namespace diptych {

// rope_attention and decode_attention (lib/ops) for few rows of a text, flash for more and for many
// texts that are masked.
class BlockAttention final : public AttentionBackend {
 public:
  explicit BlockAttention(const AttentionKind& kind, KernelPolicy kernels);

  std::string_view name() const override { return "block"; }
  std::optional<std::string> kind_unsupported(const AttentionKind&) const override {
    return std::nullopt;  // why_not_on_device() has asked
  }
  bool reads_lengths_on_device() const override { return true; }
  Tensor forward(const AttentionCall& call) const override;
  LinearOperand forward_projected(QkNormRope rope, AttentionCall call, Quantization format,
                                  KernelPolicy kernels) const override;

 private:
  bool takes_flash(const AttentionCall& call) const;

  KernelPolicy kernels_;
  std::unique_ptr<AttentionBackend> flash_;  // null: it does not take this kind
};

// Why blocks of `width` rows are launched one operation at a time, with the attention of the
// runtime, or nothing: BlockAttention serves them, and they can be captured. `drafter`: null where
// there is none.
std::optional<std::string> why_not_on_device(const QwenConfig& target, const QwenConfig* drafter,
                                             const Runtime& runtime, std::int64_t width);

}  // namespace diptych

#include "lib/pipelines/drafting/block_attention.h"

#include <fmt/format.h>

#include "lib/ops/ops.h"
#include "lib/tuning/choices.h"

namespace diptych {
namespace {

constexpr const char* kFlash = "flash";
// Of masked blocks: more fill a GPU without splitting their keys.
constexpr std::int64_t kMostMaskedRows = 128;

std::optional<std::string> heads_unsupported(const QwenConfig& config, const Runtime& runtime,
                                             std::int64_t width) {
  if (auto reason = decode_attention_unsupported(
          config.num_attention_heads, config.num_key_value_heads, config.head_dim, runtime.dtype))
    return fmt::format("decode_attention: {}", *reason);
  if (width <= kMostSplitQueries) return std::nullopt;
  const auto reason =
      attention_unsupported(kFlash, {runtime.device, runtime.dtype, config.head_dim});
  if (!reason) return std::nullopt;
  return fmt::format("blocks of more than {} tokens are for flash attention, which {}",
                     kMostSplitQueries, *reason);
}

}  // namespace

BlockAttention::BlockAttention(const AttentionKind& kind, KernelPolicy kernels)
    : kernels_(kernels) {
  if (!attention_unsupported(kFlash, kind)) flash_ = make_attention(kFlash, kind.device);
}

bool BlockAttention::takes_flash(const AttentionCall& call) const {
  const AttentionLengths& lengths = *call.lengths;
  const bool fills_device = call.causal && lengths.total_q > kMostMaskedRows;
  return flash_ && (lengths.max_q > kMostSplitQueries || fills_device);
}

LinearOperand BlockAttention::forward_projected(QkNormRope rope, AttentionCall call,
                                                Quantization format, KernelPolicy kernels) const {
  if (takes_flash(call))
    return AttentionBackend::forward_projected(std::move(rope), call, format, kernels);
  const AttentionLengths& lengths = *call.lengths;
  const RopeAttention attention = {std::move(rope), lengths.k_device, lengths.cu_q,
                                   call.scale,      call.causal,      lengths.max_q};
  return {rope_attention(attention, kernels_).flatten(1), {}};
}

Tensor BlockAttention::forward(const AttentionCall& call) const {
  const AttentionLengths& lengths = *call.lengths;
  if (takes_flash(call)) return flash_->forward(call);
  return decode_attention({call.q, call.k, call.v, lengths.k_device, lengths.cu_q, call.scale,
                           call.causal, lengths.max_q},
                          kernels_);
}

std::optional<std::string> why_not_on_device(const QwenConfig& target, const QwenConfig* drafter,
                                             const Runtime& runtime, std::int64_t width) {
  if (!runtime.device.is_cuda()) return "the CPU has no graphs";
  if (runtime.kernels == KernelPolicy::reference) return "--kernels reference";
  const std::string_view attention = runtime.read_attention.of(AttentionRole::self).name();
  if (attention != "auto") return fmt::format("attention {} was asked for", attention);
  if (auto reason = heads_unsupported(target, runtime, width)) return reason;
  if (drafter == nullptr) return std::nullopt;
  if (drafter->head_dim != target.head_dim) {
    return fmt::format("the drafter's heads are {} wide, the model's {}", drafter->head_dim,
                       target.head_dim);
  }
  return heads_unsupported(*drafter, runtime, width);
}

}  // namespace diptych

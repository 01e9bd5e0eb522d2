#include "lib/pipelines/drafting/block_attention.h"

#include <vector>

#include <fmt/format.h>

#include "lib/ops/ops.h"
#include "lib/tuning/choices.h"

namespace diptych {
namespace {

constexpr const char* kFlash = "flash";

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

Tensor BlockAttention::forward(const AttentionCall& call) const {
  const AttentionLengths& lengths = *call.lengths;
  const bool masked = call.causal && lengths.max_q > 1;
  if (flash_ && (masked || lengths.max_q > kMostSplitQueries)) return flash_->forward(call);
  if (masked) return attend_rows(call);
  return decode_attention({call.q, call.k, call.v, lengths.k_device, lengths.cu_q, call.scale},
                          kernels_);
}

// Row j of n sees all but the last n - 1 - j keys of its sample.
Tensor BlockAttention::attend_rows(const AttentionCall& call) const {
  const AttentionLengths& lengths = *call.lengths;
  const auto numbers = lengths.k_device.options();
  std::vector<Tensor> outputs;
  std::int64_t first = 0;
  for (std::int64_t sample = 0; sample < lengths.samples(); ++sample) {
    const std::int64_t rows = lengths.q[static_cast<std::size_t>(sample)];
    const auto of_each_row = [&](const Tensor& keys) {
      const Tensor own = keys.narrow(0, sample, 1);
      return own.expand({rows, own.size(1), own.size(2), own.size(3)});
    };
    const Tensor counts = lengths.k_device.narrow(0, sample, 1) + at::arange(1 - rows, 1, numbers);
    outputs.push_back(
        decode_attention({call.q.narrow(0, first, rows), of_each_row(call.k), of_each_row(call.v),
                          counts, at::arange(rows + 1, numbers), call.scale},
                         kernels_));
    first += rows;
  }
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
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

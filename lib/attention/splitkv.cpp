// For few queries a sample, such as drafts or the markers of a picture: decode_attention (lib/ops)
// splits the keys over the GPU's multiprocessors, where other kernels read them one after the
// other. Only `auto` uses it, because it takes too few queries for a whole picture.
#include <fmt/format.h>

#include "lib/attention/backends.h"
#include "lib/ops/ops.h"
#include "lib/tuning/choices.h"

namespace diptych {
namespace {

DecodeAttention decode_call(const AttentionCall& call) {
  return {call.q,
          call.k,
          call.v,
          call.lengths->k_device,
          call.lengths->cu_q,
          call.scale,
          call.causal,
          call.lengths->max_q};
}

class SplitKvAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return kSplitKv; }
  bool reads_lengths_on_device() const override { return true; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    if (!kind.device.is_cuda())
      return fmt::format("needs a CUDA device, not {}", kind.device.str());
    if (std::optional<std::string> reason = dtype_unsupported(kind)) return reason;
    return decode_attention_unsupported(1, 1, kind.head_dim, kind.dtype);
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    const std::int64_t queries = call.lengths->max_q;
    if (queries > kMostSplitQueries) {
      return fmt::format("takes at most {} queries of a sample, not {}", kMostSplitQueries,
                         queries);
    }
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (std::optional<std::string> reason = extras_unsupported(call)) return reason;
    return decode_attention_unsupported(decode_call(call));
  }

  Tensor forward(const AttentionCall& call) const override {
    check_call(call);
    require_supported(*this, call);
    return decode_attention(decode_call(call), KernelPolicy::strict);
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_splitkv(at::Device /*device*/) {
  return std::make_unique<SplitKvAttention>();
}

}  // namespace diptych

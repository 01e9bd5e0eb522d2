// Our kernel for compute capability 9.0 (kernels/hopper_attention), for heads of 128.
#include <fmt/format.h>

#include "lib/attention/backends.h"
#include "lib/ops/hopper_attention.h"

namespace diptych {
namespace {

HopperAttention hopper_call(const AttentionCall& call) {
  return {call.q,          call.k,     call.v,      call.lengths->k_device, call.lengths->cu_q,
          call.lengths->q, call.scale, call.causal, call.last_key_bias,     call.log_sum_exp};
}

class HopperAttentionBackend final : public AttentionBackend {
 public:
  std::string_view name() const override { return kHopper; }
  bool reads_lengths_on_device() const override { return true; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return hopper_kind_unsupported(kind);
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (call.bias.defined()) return "takes only a bias of the last key";
    return hopper_attention_unsupported(hopper_call(call));
  }

  bool takes_last_key_bias(const AttentionKind& kind) const override {
    return !kind_unsupported(kind);
  }

  Tensor forward(const AttentionCall& call) const override {
    check_call(call);
    require_supported(*this, call);
    return hopper_attention(hopper_call(call));
  }
};

}  // namespace

std::optional<std::string> hopper_kind_unsupported(const AttentionKind& kind) {
  if (std::optional<std::string> reason =
          half_precision_unsupported({kind.device, kind.dtype, kHopperHeadDim}, kHopperHeadDim))
    return reason;
  if (kind.head_dim == kHopperHeadDim) return std::nullopt;
  return fmt::format("needs a head_dim of {}, not {}", kHopperHeadDim, kind.head_dim);
}

std::unique_ptr<AttentionBackend> make_hopper(at::Device /*device*/) {
  return std::make_unique<HopperAttentionBackend>();
}

}  // namespace diptych

// Our kernel in e4m3 for compute capability 9.0 (kernels/hopper_fp8_attention), for heads of 128.
// What it gives are a linear layer's quantised rows.
#include "lib/attention/backends.h"
#include "lib/ops/hopper_fp8_attention.h"

namespace diptych {
namespace {

class HopperFp8AttentionBackend final : public AttentionBackend {
 public:
  std::string_view name() const override { return kHopperFp8; }
  bool reads_lengths_on_device() const override { return true; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return hopper_kind_unsupported(kind);
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (std::optional<std::string> reason = bias_unsupported(call)) return reason;
    if (call.causal) return "has no causal mask";
    if (call.q.size(1) > 1 && call.q.stride(1) != call.q.size(2)) return "needs packed heads of q";
    if (!quantize_attention_takes(call.q, call.k)) return "takes no more than 2^31 - 1 elements";
    return alignment_unsupported(call);
  }

  Tensor forward(const AttentionCall& call) const override {
    const LinearOperand rows = forward_rows(call, Quantization::fp8);
    return rows.values.to(at::kFloat)
        .mul_(rows.scales.unsqueeze(1))
        .to(call.q.scalar_type())
        .view(call.q.sizes());
  }

  LinearOperand forward_rows(const AttentionCall& call, Quantization format) const override {
    if (format != Quantization::fp8) return {forward(call).flatten(1), {}};
    check_call(call);
    require_supported(*this, call);
    const c10::DeviceGuard guard(call.q.device());
    const QuantizedAttention x =
        quantize_attention(call.q, call.k, call.v, call.lengths->k_device, KernelPolicy::strict);
    const Tensor out = hopper_fp8_attention({x, call.lengths->k_device, call.lengths->cu_q,
                                             call.lengths->q, call.scale, call.log_sum_exp});
    return {out.flatten(1), x.row_scales};
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_hopper_fp8(at::Device /*device*/) {
  return std::make_unique<HopperFp8AttentionBackend>();
}

}  // namespace diptych

// Our kernel in e4m3 for compute capability 9.0 (kernels/hopper_fp8_attention), for heads of 128.
#include "lib/attention/backends.h"
#include "lib/ops/hopper_fp8_attention.h"

namespace diptych {
namespace {

class HopperFp8AttentionBackend final : public Fp8AttentionBackend {
 public:
  std::string_view name() const override { return kHopperFp8; }
  bool reads_lengths_on_device() const override { return true; }

  std::optional<std::string> kind_unsupported(const AttentionKind& kind) const override {
    return hopper_kind_unsupported(kind);
  }

  std::optional<std::string> unsupported(const AttentionCall& call) const override {
    if (std::optional<std::string> reason = kind_unsupported(kind_of(call))) return reason;
    if (std::optional<std::string> reason = fp8_unsupported(call)) return reason;
    return alignment_unsupported(call);
  }

 private:
  LinearOperand quantised_rows(const AttentionCall& call) const override {
    const QuantizedAttention x = quantize_attention(call.q, call.k, call.v, call.lengths->k_device,
                                                    KernelPolicy::strict, ValueLayout::blocks);
    const Tensor out = hopper_fp8_attention(
        {x, call.lengths->k_device, call.lengths->cu_q, call.lengths->q, call.scale});
    return {out.flatten(1), x.row_scales};
  }
};

}  // namespace

std::unique_ptr<AttentionBackend> make_hopper_fp8(at::Device /*device*/) {
  return std::make_unique<HopperFp8AttentionBackend>();
}

}  // namespace diptych

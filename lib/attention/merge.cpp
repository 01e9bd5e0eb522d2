#include "lib/attention/merge.h"

namespace diptych {

PartialAttention merge_attention(const Tensor& out_a, const Tensor& lse_a, const Tensor& out_b,
                                 const Tensor& lse_b) {
  TORCH_CHECK(out_a.dim() == 3 && out_a.sizes() == out_b.sizes() &&
                  out_a.scalar_type() == out_b.scalar_type(),
              "[merge_attention] outputs ", out_a.sizes(), " of ", out_a.scalar_type(), " and ",
              out_b.sizes(), " of ", out_b.scalar_type());
  TORCH_CHECK(lse_a.sizes() == out_a.sizes().slice(0, 2) && lse_b.sizes() == lse_a.sizes() &&
                  lse_a.scalar_type() == at::kFloat && lse_b.scalar_type() == at::kFloat,
              "[merge_attention] log-sum-exp ", lse_a.sizes(), " and ", lse_b.sizes(),
              " for outputs ", out_a.sizes());
  // exp(lse_a) / (exp(lse_a) + exp(lse_b)), which cannot overflow.
  const Tensor share = at::sigmoid(lse_a - lse_b).unsqueeze(2);
  const Tensor out = at::lerp(out_b.to(at::kFloat), out_a.to(at::kFloat), share);
  return {out.to(out_a.scalar_type()), at::logaddexp(lse_a, lse_b)};
}

}  // namespace diptych

#include "lib/sampling/branches.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "lib/sampling/video_guidance.h"

namespace diptych {
namespace {

constexpr double kNormEps = 1e-8;

// Norms are taken in float32 whatever the velocity's dtype.
Tensor norm_of(const Tensor& v, bool per_row) {
  const Tensor wide = v.to(at::kFloat);
  return per_row ? at::linalg_vector_norm(wide, 2, {-1}, /*keepdim=*/true)
                 : at::linalg_vector_norm(wide);
}

Tensor factor_of(const Tensor& v, const Tensor& cond, bool per_row, double least) {
  return (norm_of(cond, per_row) / (norm_of(v, per_row) + kNormEps)).clamp(least, 1.0);
}

Tensor renormed(const Tensor& v, const Tensor& cond, bool per_row, double least) {
  return v * factor_of(v, cond, per_row, least);
}

}  // namespace

bool Guidance::active(float t) const {
  return t > static_cast<float>(interval_low) && t <= static_cast<float>(interval_high);
}

std::size_t Guidance::terms_at(float t) const {
  if (!active(t)) return 0;
  const auto off =
      std::ranges::find_if(terms, [](const GuidanceTerm& term) { return term.scale <= 1; });
  return static_cast<std::size_t>(off - terms.begin());
}

Tensor Guidance::combine(const Tensor& cond, std::span<const Tensor> branches) const {
  if (branches.empty()) return cond;
  TORCH_CHECK(branches.size() <= terms.size(), "[guidance] ", branches.size(), " branches of ",
              terms.size(), " terms");
  Tensor v = cond;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    v = guide(v, branches[i], terms[i].scale);
    if (i == 0 && renorm == Renorm::text_channel)
      v = renormed(v, cond, /*per_row=*/true, renorm_min);
  }
  if (renorm == Renorm::text_channel || renorm == Renorm::none) return v;
  return renormed(v, cond, renorm == Renorm::channel, renorm_min);
}

Tensor Guidance::renorm_factor(const Tensor& v, const Tensor& cond) const {
  if (renorm == Renorm::none) return at::ones({1}, at::kFloat);
  return factor_of(v, cond, renorm != Renorm::global, renorm_min).flatten();
}

}  // namespace diptych

#include "lib/sampling/branches.h"

#include "lib/base/error.h"

namespace diptych {
namespace {

constexpr double kNormEps = 1e-8;

// Norms are taken in float32 whatever the velocity's dtype.
Tensor norm_of(const Tensor& v, bool per_row) {
  const Tensor wide = v.to(at::kFloat);
  return per_row ? at::linalg_vector_norm(wide, 2, {-1}, /*keepdim=*/true)
                 : at::linalg_vector_norm(wide);
}

Tensor renormed(const Tensor& v, const Tensor& cond, bool per_row, double least) {
  return v * (norm_of(cond, per_row) / (norm_of(v, per_row) + kNormEps)).clamp(least, 1.0);
}

}  // namespace

bool Guidance::active(float t) const {
  return t > static_cast<float>(interval_low) && t <= static_cast<float>(interval_high);
}

Tensor Guidance::combine(const Tensor& cond, const Tensor& text_uncond,
                         const Tensor& img_uncond) const {
  if (!text_uncond.defined()) return cond;
  Tensor v = text_uncond + text_scale * (cond - text_uncond);
  if (renorm == Renorm::text_channel) v = renormed(v, cond, /*per_row=*/true, renorm_min);
  if (img_uncond.defined()) v = img_uncond + image_scale * (v - img_uncond);
  if (renorm == Renorm::text_channel) return v;
  return renormed(v, cond, renorm == Renorm::channel, renorm_min);
}

}  // namespace diptych

#include "lib/sampling/video_guidance.h"

#include <numeric>
#include <vector>

#include <c10/util/Exception.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

// [batch, 1, ...]
Tensor spread(const Tensor& v) {
  std::vector<std::int64_t> dims(static_cast<std::size_t>(v.dim() - 1));
  std::iota(dims.begin(), dims.end(), 1);
  return v.std(dims, /*unbiased=*/true, /*keepdim=*/true);
}

std::int64_t first_reusing_step(double fraction, std::int64_t steps, const Setting& setting) {
  if (!(fraction >= 0 && fraction <= 1))
    throw InputError(setting, "found {}, expected a number from 0 to 1", fraction);
  return static_cast<std::int64_t>(static_cast<double>(steps) * fraction);
}

}  // namespace

Tensor guide(const Tensor& cond, const Tensor& uncond, double scale) {
  return uncond + scale * (cond - uncond);
}

Tensor guide_x0(const Tensor& cond, const Tensor& uncond, double scale) {
  return cond + scale * (cond - uncond);
}

Tensor rescale_guidance(const Tensor& guided, const Tensor& cond, double phi) {
  TORCH_CHECK(guided.dim() >= 2 && guided.sizes() == cond.sizes(), "[guidance rescale] ",
              guided.sizes(), " guided, ", cond.sizes(), " conditional");
  if (phi == 0) return guided;
  const Tensor rescaled = guided * (spread(cond) / spread(guided));
  return phi * rescaled + (1 - phi) * guided;
}

GuidanceGate::GuidanceGate(double fraction, std::int64_t steps, const Setting& setting)
    : steps_(steps), first_reusing_step_(first_reusing_step(fraction, steps, setting)) {}

bool GuidanceGate::begin_step(std::int64_t step, std::int64_t expert) {
  if (difference_.defined() && expert != expert_) {
    difference_ = Tensor();
    ++counters_.invalidations;
  }
  expert_ = expert;
  needs_uncond_ = step < first_reusing_step_ || !difference_.defined();
  ++(needs_uncond_ ? counters_.fresh : counters_.reused);
  return needs_uncond_;
}

Tensor GuidanceGate::guide(const Tensor& cond, const Tensor& uncond, double scale) {
  TORCH_CHECK(uncond.defined() == needs_uncond_,
              "[guidance gate] the branch without the prompt is ",
              needs_uncond_ ? "needed" : "not needed");
  if (!needs_uncond_) return cond + (scale - 1) * difference_;
  Tensor difference = cond - uncond;
  Tensor guided = uncond + scale * difference;
  if (on()) difference_ = std::move(difference);
  return guided;
}

void GuidanceGate::reset() {
  difference_ = Tensor();
  needs_uncond_ = true;
  counters_ = {};
}

}  // namespace diptych

#include "lib/pipelines/mot/guided_velocity.h"

#include <algorithm>

#include "lib/pipelines/mot/trace.h"

namespace diptych {

std::int64_t contexts_of(std::size_t terms, const Guidance& guidance,
                         const PrefilledContexts& contexts) {
  std::int64_t last = 0;
  for (const GuidanceTerm& term : std::span(guidance.terms).first(terms))
    last = std::max(last, *contexts.context_of(term.branch));
  return last + 1;
}

Tensor GuidedVelocity::combine(const Tensor& cond, std::span<const Tensor> branches) const {
  const Guidance& guidance = request_.guidance;
  if (request_.sizes.size() == 1 || request_.renorm_whole_batch)
    return guidance.combine(cond, branches);
  std::vector<Tensor> guided;
  std::int64_t row = 0;
  for (const LatentSize& size : request_.sizes) {
    const auto part = [&](const Tensor& all) { return all.narrow(0, row, size.rows()); };
    std::vector<Tensor> parts;
    for (const Tensor& branch : branches) parts.push_back(part(branch));
    guided.push_back(guidance.combine(part(cond), parts));
    row += size.rows();
  }
  return at::cat(guided);
}

// v: of the first contexts.
Tensor GuidedVelocity::guide(const std::vector<Tensor>& v, std::size_t terms) const {
  std::vector<Tensor> branches;
  for (const GuidanceTerm& term : std::span(request_.guidance.terms).first(terms))
    branches.push_back(v[static_cast<std::size_t>(*contexts_.context_of(term.branch))]);
  return combine(v.front(), branches);
}

Tensor GuidedVelocity::at_step(const Tensor& x, std::int64_t step, MotTrace* trace) const {
  const std::size_t terms = request_.terms_in(step);
  const std::vector<Tensor> v =
      denoiser_.velocities(x, step, contexts_of(terms, request_.guidance, contexts_));
  const Tensor guided = guide(v, terms);
  if (trace != nullptr) {
    const float t = request_.schedule.times[static_cast<std::size_t>(step)];
    trace->velocities({step, t, request_.guidance, contexts_, v, guided});
  }
  return denoiser_.still(guided);
}

Tensor GuidedVelocity::launched(const Tensor& x, const Tensor& step, std::int64_t terms) const {
  const Tensor time = denoiser_.times().index_select(0, step)[0];
  const auto acting = static_cast<std::size_t>(terms);
  const std::int64_t count = contexts_of(acting, request_.guidance, contexts_);
  return denoiser_.still(guide(denoiser_.velocities_at(x, time, count), acting));
}

}  // namespace diptych

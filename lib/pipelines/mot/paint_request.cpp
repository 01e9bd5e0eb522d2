#include "lib/pipelines/mot/paint_request.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "lib/base/messages.h"
#include "lib/sampling/schedule.h"
#include "lib/sampling/step_cache/step_cache.h"

namespace diptych {
PaintRequest make_paint_request(const RunConfig& config, std::vector<GuidanceTerm> terms,
                                std::int64_t points, const StepCalibration* calibration) {
  const SamplingConfig& s = config.sampling;
  PaintRequest request;
  request.guidance = {std::move(terms), s.cfg_interval_low, s.cfg_interval_high, s.cfg_renorm_type,
                      s.cfg_renorm_min};
  request.cfg_mode = config.cfg_mode.value_or(CfgMode::batched);
  request.step_graphs = !config.enforce_eager;
  request.schedule = FlowSchedule::shifted(points, s.timestep_shift);
  request.step_cache.mode = config.cache_mode;
  if (calibration != nullptr) {
    request.step_cache.threshold = config.cache_threshold;
    request.step_cache.coefficients = calibration->coefficients;
  }
  return request;
}

std::int64_t PaintRequest::rows() const {
  std::int64_t rows = 0;
  for (const LatentSize& size : sizes) rows += size.rows();
  return rows;
}

std::vector<std::int64_t> PaintRequest::block_rows() const {
  std::vector<std::int64_t> rows;
  for (const LatentSize& size : sizes) rows.push_back(size.rows() + 2);
  return rows;
}

std::size_t PaintRequest::terms_in(std::int64_t i) const {
  return guidance.terms_at(schedule.times[static_cast<std::size_t>(i)]);
}

std::vector<BranchContexts> PaintRequest::needed(std::vector<BranchContexts> all,
                                                 bool tracing) const {
  std::size_t most = 0;
  for (std::int64_t i = 0; i < schedule.updates(); ++i) most = std::max(most, terms_in(i));
  // TaylorSeer counts each branch's calls: one that sets in after cond has begun is at another
  // place of the schedule, even where both have read the same.
  const bool late =
      step_cache.mode == StepCacheMode::taylorseer && !guidance.active(schedule.times.front());
  std::vector<BranchContexts> branches = {std::move(all.front())};
  for (BranchContexts& branch : std::span(all).subspan(1)) {
    const auto acting = std::span(guidance.terms).first(most);
    const bool used = std::ranges::find(acting, branch.name, &GuidanceTerm::branch) != acting.end();
    if (!used && !tracing) continue;
    branch.counts_apart = late && used;
    branches.push_back(std::move(branch));
  }
  return branches;
}

}  // namespace diptych

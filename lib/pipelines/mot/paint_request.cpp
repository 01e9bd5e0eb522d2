#include "lib/pipelines/mot/paint_request.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "lib/base/messages.h"
#include "lib/sampling/schedule.h"
#include "lib/sampling/step_cache/step_cache.h"

namespace diptych {
namespace {

bool guidance_is_idle(const PaintRequest& paint) {
  if (paint.guidance.terms.front().scale <= 1) return false;
  for (std::int64_t i = 0; i < paint.schedule.updates(); ++i) {
    if (paint.terms_in(i) > 0) return false;
  }
  return true;
}

// Whether each of so many updates would be computed, however alike they are.
bool cache_is_idle(const RunConfig& config, std::int64_t updates) {
  constexpr std::int64_t kFirstAndLast = 2;
  if (config.cache_mode == StepCacheMode::none) return false;
  if (config.cache_mode == StepCacheMode::teacache) return updates <= kFirstAndLast;
  TaylorSeer series;
  bool computed = true;
  for (std::int64_t i = 0; i < updates && computed; ++i) computed = series.begin_call();
  return computed;
}

// What has no effect in these steps.
void warn_of_idle_settings(const RunConfig& config, const PaintRequest& paint, Log& log) {
  const SamplingConfig& s = config.sampling;
  const std::int64_t updates = paint.schedule.updates();
  if (guidance_is_idle(paint)) {
    log.warning_once(fmt::format(
        "--cfg-interval {},{}: none of the {} updates lies in it: there is no guidance{}",
        s.cfg_interval_low, s.cfg_interval_high, updates,
        config.negative_prompt.empty() ? "" : ", and --negative-prompt has no effect"));
  }
  if (cache_is_idle(config, updates)) {
    log.warning_once(fmt::format("--cache-mode {}: predicts nothing in {}; it needs more --steps",
                                 name_of(config.cache_mode),
                                 counted(static_cast<std::size_t>(updates), "update")));
  }
}

}  // namespace

PaintRequest make_paint_request(const RunConfig& config, std::vector<GuidanceTerm> terms,
                                std::int64_t points, const StepCalibration* calibration, Log& log) {
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
  warn_of_idle_settings(config, request, log);
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

#include "lib/pipelines/mot/idle_settings.h"

#include <fmt/format.h>

#include "lib/base/messages.h"
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

}  // namespace

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

}  // namespace diptych

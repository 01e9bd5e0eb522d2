#include "lib/sampling/step_cache/timestep_teacache.h"

#include <c10/util/Exception.h>

namespace diptych {

void TimestepTeaCacheConfig::check() const {
  StepCacheConfig{StepCacheMode::teacache, threshold, coefficients}.check();
}

TimestepTeaCacheRule::TimestepTeaCacheRule(const TimestepTeaCacheConfig& config, std::int64_t steps)
    : config_(config), steps_(steps) {
  config.check();
}

bool TimestepTeaCacheRule::begin_call(std::int64_t step, Branch branch,
                                      const std::function<double()>& change) {
  double& sum = sums_.at(static_cast<std::size_t>(branch));
  const bool is_first = step == 0 || step < config_.ret_steps;
  const bool is_last = !config_.use_ret_steps && step == steps_ - 1;
  if (!is_first && !is_last) {
    // Unlike TeaCacheRule this takes estimates below 0 as they are. NaN computes.
    sum += evaluate(config_.coefficients, change());
    if (sum < config_.threshold) return false;
  }
  sum = 0;
  return true;
}

std::vector<bool> plan_timestep_teacache(const TimestepTeaCacheConfig& config,
                                         const Tensor& modulations) {
  TORCH_CHECK(modulations.dim() == 2, "[teacache] modulations ", modulations.sizes());
  const std::int64_t steps = modulations.size(0);
  const Tensor rows = modulations.to(at::kCPU);
  TimestepTeaCacheRule rule(config, steps);
  std::vector<bool> computed;
  for (std::int64_t i = 0; i < steps; ++i) {
    computed.push_back(rule.begin_call(i, TimestepTeaCacheRule::Branch::cond, [&] {
      return relative_change(rows[i], rows[i - 1]).item<double>();
    }));
  }
  return computed;
}

}  // namespace diptych

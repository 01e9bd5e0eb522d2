// TeaCache for transformers whose modulation depends on the timestep alone (Liu et al. 2024,
// arXiv:2411.19108): a step whose modulation has changed little since the last computed one adds
// that step's residual instead of running the blocks. The rule of ali-vilab/TeaCache,
// TeaCache4Wan2.1/teacache_generate.py, which differs from TeaCacheRule in what it compares and in
// when it computes; specs: wan.md 7.2.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/sampling/step_cache/step_cache.h"
#include "lib/tensor/types.h"

namespace diptych {

struct TimestepTeaCacheConfig {
  StepCacheCoefficients coefficients{};
  double threshold = 0;
  // What is compared: timestep_proj, the modulation of all blocks, or temb, that of the head.
  bool use_ret_steps = true;
  // Steps at the start that are computed in any case; without use_ret_steps the last one is, too.
  std::int64_t ret_steps = 5;

  // Throws as StepCacheConfig::check for threshold and coefficients.
  void check() const;
};

// Decides call by call. A step has a call for each branch, the one with the prompt first; each
// branch has a sum of its own.
class TimestepTeaCacheRule {
 public:
  enum class Branch { cond, uncond };

  // `steps`: of the clip. Throws as TimestepTeaCacheConfig::check.
  TimestepTeaCacheRule(const TimestepTeaCacheConfig& config, std::int64_t steps);

  // Whether the call must be computed. `change`: relative_change() of what is compared since the
  // step before, in the same branch; asked for only where it decides.
  bool begin_call(std::int64_t step, Branch branch, const std::function<double()>& change);
  double sum(Branch branch) const { return sums_.at(static_cast<std::size_t>(branch)); }
  void reset() { sums_ = {}; }

 private:
  TimestepTeaCacheConfig config_;
  std::int64_t steps_;
  std::array<double, 2> sums_{};
};

// The rule for a whole clip ahead: [steps], true where the step's calls must be computed. Both
// branches then decide alike. modulations: [steps, width], row i what step i compares, any device.
// Waits for the device once.
std::vector<bool> plan_timestep_teacache(const TimestepTeaCacheConfig& config,
                                         const Tensor& modulations);

}  // namespace diptych

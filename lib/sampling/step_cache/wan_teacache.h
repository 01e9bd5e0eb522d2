// TeaCache for Wan 2.1 (Liu et al. 2024, arXiv:2411.19108): a step whose modulation has changed
// little since the last computed one adds that step's residual instead of running the blocks. The
// rule of ali-vilab/TeaCache, TeaCache4Wan2.1/teacache_generate.py, which differs from TeaCacheRule
// in what it compares and in when it computes; specs: wan.md 7.2.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/sampling/step_cache/step_cache.h"
#include "lib/tensor/types.h"

namespace diptych {

// Checkpoints with published coefficients.
enum class WanTeaCacheModel { t2v_1_3b, t2v_14b, i2v_14b_480p, i2v_14b_720p };
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<WanTeaCacheModel> = {
    "t2v_1.3b", "t2v_14b", "i2v_14b_480p", "i2v_14b_720p"};

struct WanTeaCacheConfig {
  StepCacheCoefficients coefficients{};
  double threshold = 0;
  // What is compared: timestep_proj, the modulation of all blocks, or temb, that of the head.
  bool use_ret_steps = true;
  // Steps at the start that are computed in any case; without use_ret_steps the last one is, too.
  std::int64_t ret_steps = 5;

  // As published, with the given choice of what is compared.
  static WanTeaCacheConfig published(WanTeaCacheModel model, bool use_ret_steps);
  // As FastVideo sets it for the model.
  static WanTeaCacheConfig preset(WanTeaCacheModel model);
  // Throws as StepCacheConfig::check for threshold and coefficients.
  void check() const;
};

// Decides call by call. A step has a call for each branch, the one with the prompt first; each
// branch has a sum of its own.
class WanTeaCacheRule {
 public:
  enum class Branch { cond, uncond };

  // `steps`: of the clip. Throws as WanTeaCacheConfig::check.
  WanTeaCacheRule(const WanTeaCacheConfig& config, std::int64_t steps);

  // Whether the call must be computed. `change`: relative_change() of what is compared since the
  // step before, in the same branch; asked for only where it decides.
  bool begin_call(std::int64_t step, Branch branch, const std::function<double()>& change);
  double sum(Branch branch) const { return sums_.at(static_cast<std::size_t>(branch)); }
  void reset() { sums_ = {}; }

 private:
  WanTeaCacheConfig config_;
  std::int64_t steps_;
  std::array<double, 2> sums_{};
};

// The rule for a whole clip ahead, where what is compared depends on the timestep alone, as in
// every Wan model: [steps], true where the step's calls must be computed. Both branches then decide
// alike. modulations: [steps, width], row i what step i compares, any device. Waits for the device
// once.
std::vector<bool> plan_wan_teacache(const WanTeaCacheConfig& config, const Tensor& modulations);

}  // namespace diptych

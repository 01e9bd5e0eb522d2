// Denoising with fewer forwards: what a branch's transformer would give in a step is predicted from
// what it gave in earlier ones. Works on tensors and knows no model.
//
// A context is one guidance branch (several, where they share what they have read). `input`: the
// rows that enter the first layer in this step, the same for every context; `output`: the rows that
// leave the last one, before the final norm; both [rows, hidden] in the model's dtype. Both are
// kept, not copied: nobody may write to them afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/tensor/types.h"

namespace diptych {

using StepCacheCoefficients = std::array<double, 5>;  // of a polynomial, degree 4 first
double evaluate(const StepCacheCoefficients& coefficients, double x);

struct StepCacheConfig {
  StepCacheMode mode = StepCacheMode::none;
  // Of teacache alone. The sum of estimated relative output changes that steps may be left out for.
  double threshold = 0;
  // The estimate, from the relative input change: StepCalibration.
  StepCacheCoefficients coefficients{};

  // Throws InputError for teacache without a positive threshold or without coefficients.
  void check() const;
};

// How many times a cache keeps a context's rows between steps, at most.
std::int64_t kept_rows(StepCacheMode mode);

// |current - previous| / |previous|, sums of absolute values in float32: a float32 scalar on the
// tensors' device. NaN where both sums are 0.
Tensor relative_change(const Tensor& current, const Tensor& previous);

// TaylorSeer for one context. Port of ByteDance-Seed/Bagel @056b5fd,
// modeling/cache_utils/taylorseer.py (cache_init, cal_type, derivative_approximation,
// taylor_formula), in the features' dtype and order of rounding; specs: bagel.md section 13. The
// official code keeps a series per layer, of which only the last reaches the result, and never
// clears it; here a series ends with its picture.
class TaylorSeer {
 public:
  // Begins the context's next call: true where it must be computed, and then stored. Calls are
  // counted by context: one that guidance leaves out does not advance. Computed are the calls 0 to
  // 4, 7, 10, 13, ...
  bool begin_call();
  void store(const Tensor& features);
  Tensor predict() const;  // of a call that is not computed; a fresh tensor

 private:
  std::int64_t calls_ = 0, last_computed_ = 0, distance_ = 0, predicted_ = 0;
  std::vector<Tensor> factors_;  // [i]: the i-th difference quotient at the last computed call
};

// When TeaCache computes. One decision for all contexts of a step: guidance then never combines
// residuals of different steps, and a packed forward is whole or not at all. Computed are the first
// and the last step, a step with a context that was not among those last computed (guidance sets
// in), a step for which the estimate is negative or NaN, and one with which the sum of estimates
// since the last computed step reaches the threshold.
class TeaCacheRule {
 public:
  // `steps`: updates of a picture.
  TeaCacheRule(double threshold, const StepCacheCoefficients& coefficients, std::int64_t steps)
      : threshold_(threshold), coefficients_(coefficients), steps_(steps) {}

  // Whether the step must be computed, for its contexts 0 .. count - 1. `change`: the relative
  // change of the input since the step before, asked for only where it decides.
  bool begin_step(std::int64_t step, std::int64_t count, const std::function<double()>& change);

 private:
  bool estimate_reaches_threshold(double change);

  double threshold_;
  StepCacheCoefficients coefficients_;
  std::int64_t steps_;
  double sum_ = 0;
  std::int64_t computed_ = 0;  // contexts of the last computed step
};

// What computed steps added to their inputs, by context.
class StepResiduals {
 public:
  void store(std::int64_t context, const Tensor& input, const Tensor& output);
  Tensor predict(std::int64_t context, const Tensor& input) const;  // a fresh tensor
  void clear() { residuals_.clear(); }

 private:
  std::vector<Tensor> residuals_;  // [context]: output - input of the last computed step
};

class TeaCache {
 public:
  TeaCache(double threshold, const StepCacheCoefficients& coefficients, std::int64_t steps)
      : rule_(threshold, coefficients, steps) {}

  // As the rule's; a step that is computed is then stored. Waits for one number from the device,
  // but not in steps that are computed in any case.
  bool begin_step(const Tensor& input, std::int64_t step, std::int64_t count);
  void store(std::int64_t context, const Tensor& input, const Tensor& output) {
    residuals_.store(context, input, output);
  }
  Tensor predict(std::int64_t context, const Tensor& input) const {  // a fresh tensor
    return residuals_.predict(context, input);
  }

 private:
  TeaCacheRule rule_;
  Tensor previous_input_;
  StepResiduals residuals_;
};

// Either of them for a picture's steps. Not for StepCacheMode::none.
class StepCache {
 public:
  // `steps`: updates of a picture. Throws as StepCacheConfig::check.
  StepCache(const StepCacheConfig& config, std::int64_t contexts, std::int64_t steps);
  void begin_picture();  // forgets everything
  // Which of the step's contexts 0 .. count - 1 must be computed, and then stored; the others are
  // predicted. Steps come in order, each at most once a picture.
  std::vector<bool> begin_step(const Tensor& input, std::int64_t step, std::int64_t count);
  // output may have further leading dimensions, over which input is repeated.
  void store(std::int64_t context, const Tensor& input, const Tensor& output);
  Tensor predict(std::int64_t context, const Tensor& input) const;  // as stored; a fresh tensor

 private:
  StepCacheConfig config_;
  std::int64_t contexts_, steps_, last_step_ = -1;
  std::vector<TaylorSeer> taylorseer_;  // [context]
  std::optional<TeaCache> teacache_;
};

}  // namespace diptych

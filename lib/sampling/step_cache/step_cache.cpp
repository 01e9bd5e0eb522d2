#include "lib/sampling/step_cache/step_cache.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"

namespace diptych {

double evaluate(const StepCacheCoefficients& coefficients, double x) {
  double value = 0;
  for (const double coefficient : coefficients) value = value * x + coefficient;
  return value;
}

void StepCacheConfig::check() const {
  if (mode != StepCacheMode::teacache) return;
  if (!(threshold > 0 && std::isfinite(threshold))) {
    throw InputError("teacache: threshold: found {}, expected a positive number", threshold);
  }
  const bool finite = std::ranges::all_of(coefficients, [](double c) { return std::isfinite(c); });
  const bool given = std::ranges::any_of(coefficients, [](double c) { return c != 0; });
  if (!finite || !given) {
    throw InputError("teacache: coefficients: found [{}], expected 5 finite numbers, not all 0",
                     fmt::join(coefficients, ", "));
  }
}

Tensor relative_change(const Tensor& current, const Tensor& previous) {
  return (current - previous).abs().sum(at::kFloat) / previous.abs().sum(at::kFloat);
}

namespace {

// cache_init of the official code.
constexpr std::int64_t kFirstEnhance = 5;    // calls computed at first
constexpr std::int64_t kFreshThreshold = 3;  // then one in so many
constexpr std::size_t kMaxOrder = 6;

}  // namespace

std::int64_t kept_rows(StepCacheMode mode) {
  switch (mode) {
    case StepCacheMode::none:
      return 0;
    case StepCacheMode::taylorseer:
      return 1 + static_cast<std::int64_t>(kMaxOrder);
    case StepCacheMode::teacache:
      return 2;  // an input and a residual
  }
  return 0;
}

bool TaylorSeer::begin_call() {
  const std::int64_t call = calls_++;
  if (call >= kFirstEnhance && predicted_ < kFreshThreshold - 1) {
    ++predicted_;
    return false;
  }
  distance_ = call - last_computed_;
  last_computed_ = call;
  predicted_ = 0;
  return true;
}

void TaylorSeer::store(const Tensor& features) {
  TORCH_CHECK(calls_ > 0 && predicted_ == 0, "[taylorseer] call ", calls_ - 1, " is predicted");
  std::vector<Tensor> factors = {features};
  // Differences begin where calls stop being consecutive: none of the first calls has any.
  const std::size_t orders =
      last_computed_ > kFirstEnhance - 2 ? std::min(factors_.size(), kMaxOrder) : 0;
  for (std::size_t i = 0; i < orders; ++i) {
    factors.push_back((factors[i] - factors_[i]).div_(distance_));
  }
  factors_ = std::move(factors);
}

Tensor TaylorSeer::predict() const {
  TORCH_CHECK(predicted_ > 0, "[taylorseer] call ", calls_ - 1, " is not predicted");
  // The sum of D_i x^i / i!, each product rounded as the official code rounds it.
  Tensor sum = factors_.front().clone();
  double factorial = 1;
  std::int64_t power = 1;
  for (std::size_t i = 1; i < factors_.size(); ++i) {
    factorial *= static_cast<double>(i);
    power *= calls_ - 1 - last_computed_;
    sum += (factors_[i] * (1 / factorial)).mul_(power);
  }
  return sum;
}

bool TeaCacheRule::begin_step(std::int64_t step, std::int64_t count,
                              const std::function<double()>& change) {
  const bool in_any_case = step == 0 || step == steps_ - 1 || count > computed_;
  if (!in_any_case && !estimate_reaches_threshold(change())) return false;
  sum_ = 0;
  computed_ = count;
  return true;
}

bool TeaCacheRule::estimate_reaches_threshold(double change) {
  const double estimate = evaluate(coefficients_, change);
  if (!(estimate >= 0)) return true;  // NaN, or outside of what was calibrated: it tells nothing
  sum_ += estimate;
  return !(sum_ < threshold_);
}

void StepResiduals::store(std::int64_t context, const Tensor& input, const Tensor& output) {
  const auto index = static_cast<std::size_t>(context);
  if (index >= residuals_.size()) residuals_.resize(index + 1);
  residuals_[index] = output - input;
}

Tensor StepResiduals::predict(std::int64_t context, const Tensor& input) const {
  const auto index = static_cast<std::size_t>(context);
  TORCH_CHECK(index < residuals_.size() && residuals_[index].defined(), "[teacache] context ",
              context, " was not stored");
  return residuals_[index] + input;
}

bool TeaCache::begin_step(const Tensor& input, std::int64_t step, std::int64_t count) {
  const bool compute = rule_.begin_step(
      step, count, [&] { return relative_change(input, previous_input_).item<double>(); });
  previous_input_ = input;
  if (compute) residuals_.clear();
  return compute;
}

StepCache::StepCache(const StepCacheConfig& config, std::int64_t contexts, std::int64_t steps)
    : config_(config), contexts_(contexts), steps_(steps) {
  TORCH_CHECK(config.mode != StepCacheMode::none, "[step cache] none has no state");
  config.check();
  begin_picture();
}

void StepCache::begin_picture() {
  last_step_ = -1;
  if (config_.mode == StepCacheMode::taylorseer) {
    taylorseer_.assign(static_cast<std::size_t>(contexts_), {});
  } else {
    teacache_.emplace(config_.threshold, config_.coefficients, steps_);
  }
}

std::vector<bool> StepCache::begin_step(const Tensor& input, std::int64_t step,
                                        std::int64_t count) {
  TORCH_CHECK(step > last_step_ && step < steps_, "[step cache] step ", step, " of ", steps_,
              " after step ", last_step_, ": a picture begins with begin_picture()");
  TORCH_CHECK(count <= contexts_, "[step cache] ", count, " contexts of ", contexts_);
  last_step_ = step;
  if (teacache_) {
    return std::vector<bool>(static_cast<std::size_t>(count),
                             teacache_->begin_step(input, step, count));
  }
  std::vector<bool> computed;
  for (std::int64_t context = 0; context < count; ++context) {
    computed.push_back(taylorseer_[static_cast<std::size_t>(context)].begin_call());
  }
  return computed;
}

void StepCache::store(std::int64_t context, const Tensor& input, const Tensor& output) {
  if (teacache_) return teacache_->store(context, input, output);
  taylorseer_.at(static_cast<std::size_t>(context)).store(output);
}

Tensor StepCache::predict(std::int64_t context, const Tensor& input) const {
  if (teacache_) return teacache_->predict(context, input);
  return taylorseer_.at(static_cast<std::size_t>(context)).predict();
}

}  // namespace diptych

#include "lib/pipelines/dit/block_cache.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace diptych {

void BlockCache::begin(const StepCacheConfig& config, std::int64_t updates) {
  config.check();
  config_ = config;
  updates_ = updates;
  computed_.assign(static_cast<std::size_t>(updates), false);
  series_.clear();
  rule_.reset();
  residuals_.clear();
  modulated_.reset();
  decided_ = -1;
}

Tensor BlockCache::rows(const BlockCall& call, Tensor x, const Modulate& modulate, const Run& run) {
  if (recorder_ != nullptr) return recorded(call, std::move(x), modulate, run);
  if (std::exchange(model_, call.model) != call.model) {
    series_.clear();
    rule_.reset();
    residuals_.clear();
  }
  switch (config_.mode) {
    case StepCacheMode::none:
      break;
    case StepCacheMode::taylorseer:
      return extrapolated(call, std::move(x), run);
    case StepCacheMode::teacache:
      return with_residual(call, std::move(x), modulate, run);
  }
  return run(std::move(x));
}

Tensor BlockCache::recorded(const BlockCall& call, Tensor x, const Modulate& modulate,
                            const Run& run) {
  if (std::exchange(model_, call.model) != call.model) recorder_->forget();
  if (std::exchange(decided_, call.step) != call.step) modulated_ = modulate(x);
  Tensor rows = run(std::move(x));
  const std::int64_t own = rows.size(0) / call.samples;
  for (std::int64_t i = 0; i < call.samples; ++i)
    recorder_->record(call.step, call.first + i, modulated_, rows.narrow(0, i * own, own));
  return rows;
}

Tensor BlockCache::extrapolated(const BlockCall& call, Tensor x, const Run& run) {
  TaylorSeer& series = series_[call.first];
  if (!series.begin_call()) return series.predict();
  computed_.at(static_cast<std::size_t>(call.step)) = true;
  Tensor rows = run(std::move(x));
  series.store(rows);
  return rows;
}

bool BlockCache::decide(const BlockCall& call, const Tensor& modulated) {
  if (!rule_) rule_.emplace(config_.threshold, config_.coefficients, updates_);
  const bool computes = rule_->begin_step(call.step, /*count=*/1, [&] {
    return relative_change(modulated, modulated_).item<double>();
  });
  modulated_ = modulated;
  if (computes) residuals_.clear();
  return computes;
}

Tensor BlockCache::with_residual(const BlockCall& call, Tensor x, const Modulate& modulate,
                                 const Run& run) {
  const auto step = static_cast<std::size_t>(call.step);
  if (std::exchange(decided_, call.step) != call.step)
    computed_.at(step) = decide(call, modulate(x));
  // A branch that was left out when the others were last computed has none.
  const auto residual = residuals_.find(call.first);
  if (residual != residuals_.end()) return residual->second + x;
  computed_[step] = true;
  const Tensor before = x.clone();
  Tensor rows = run(std::move(x));
  residuals_[call.first] = rows - before;
  return rows;
}

std::string BlockCache::note() const {
  if (config_.mode == StepCacheMode::none) return {};
  return fmt::format("{} computed {} of {} steps",
                     config_.mode == StepCacheMode::teacache ? "TeaCache" : "TaylorSeer",
                     std::ranges::count(computed_, true), computed_.size());
}

std::int64_t step_cache_bytes(const DitJob& job, std::int64_t values, at::ScalarType dtype) {
  const StepCacheMode mode = job.records_steps ? StepCacheMode::teacache : job.config().cache_mode;
  // By a calibration TeaCache compares what two steps see.
  const std::int64_t seen = job.records_steps || job.calibration ? 2 : 0;
  return (kept_rows(mode) * job.branches + seen) * values *
         static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace diptych

#include "lib/pipelines/dit/block_series.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace diptych {

void BlockSeries::begin(std::int64_t updates) {
  series_.clear();
  computed_.assign(static_cast<std::size_t>(updates), false);
}

Tensor BlockSeries::rows(std::int64_t step, std::int64_t branch, std::size_t model, Tensor x,
                         const Run& run) {
  if (std::exchange(model_, model) != model) series_.clear();
  TaylorSeer& series = series_[branch];
  if (!series.begin_call()) return series.predict();
  computed_.at(static_cast<std::size_t>(step)) = true;
  Tensor computed = run(std::move(x));
  series.store(computed);
  return computed;
}

std::string BlockSeries::note() const {
  return fmt::format("TaylorSeer computed {} of {} steps", std::ranges::count(computed_, true),
                     computed_.size());
}

std::int64_t step_cache_bytes(const DitJob& job, std::int64_t values, at::ScalarType dtype) {
  return kept_rows(job.config().cache_mode) * job.branches * values *
         static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace diptych

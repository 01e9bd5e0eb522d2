#include "lib/pipelines/bagel_context.h"

#include <algorithm>

#include <fmt/format.h>

#include "lib/pipelines/bagel_trace.h"

namespace diptych {

std::int64_t BagelContext::length() const {
  std::int64_t total = 0;
  for (const TextSegment& segment : segments)
    total += static_cast<std::int64_t>(segment.ids.size());
  return total;
}

std::int64_t BagelContext::position() const {
  return length();
}  // a text token moves both by one

PrefilledContexts::PrefilledContexts(const Bagel& model, std::vector<BranchContexts> branches,
                                     std::span<const std::int64_t> own_rows, const Runtime& runtime)
    : branches_(std::move(branches)), samples_(static_cast<std::int64_t>(own_rows.size())) {
  // Equal contexts become one.
  for (std::size_t b = 0; b < branches_.size(); ++b) {
    const auto same = std::find_if(distinct_.begin(), distinct_.end(), [&](std::size_t other) {
      return branches_[other].samples == branches_[b].samples;
    });
    context_of_branch_.push_back(same - distinct_.begin());
    if (same == distinct_.end()) distinct_.push_back(b);
  }
  std::int64_t capacity = 0;
  for (const BranchContexts& branch : branches_) {
    for (std::size_t s = 0; s < own_rows.size(); ++s) {
      capacity = std::max(capacity, branch.samples[s].length() + own_rows[s]);
    }
  }
  const auto options = at::TensorOptions().device(runtime.device).dtype(runtime.dtype);
  cache_.emplace(model.config.llm.kv_shape(), distinct() * samples_, capacity, options);
  for (std::int64_t i = 0; i < distinct(); ++i) prefill(model, i, runtime);
  if (runtime.trace != nullptr) trace_contexts(*this, runtime);
}

std::optional<std::int64_t> PrefilledContexts::context_of(std::string_view branch) const {
  for (std::size_t b = 0; b < branches_.size(); ++b) {
    if (branches_[b].name == branch) return context_of_branch_[b];
  }
  return std::nullopt;
}

const BagelContext& PrefilledContexts::context(std::int64_t distinct, std::int64_t sample) const {
  return branches_[distinct_[static_cast<std::size_t>(distinct)]]
      .samples[static_cast<std::size_t>(sample)];
}

void PrefilledContexts::prefill(const Bagel& model, std::int64_t distinct, const Runtime& runtime) {
  const auto options = at::TensorOptions().device(runtime.device).dtype(runtime.dtype);
  const std::size_t rounds = context(distinct, 0).segments.size();
  for (std::size_t round = 0; round < rounds; ++round) {
    // The round's segment of every sample in one packed call.
    std::vector<MotSample> rows;
    std::vector<std::int64_t> ids;
    for (std::int64_t s = 0; s < samples_; ++s) {
      const BagelContext& read = context(distinct, s);
      TORCH_CHECK(read.segments.size() == rounds,
                  "[prefill] samples with different numbers of segments");
      const std::vector<std::int64_t>& segment = read.segments[round].ids;
      const std::int64_t before = cache_->length(cache_row(distinct, s));
      rows.push_back({before, before, 0, static_cast<std::int64_t>(segment.size())});
      ids.insert(ids.end(), segment.begin(), segment.end());
    }
    const MotPlan plan =
        plan_text(rows, cache_row(distinct, 0), *cache_, model.config.llm, options);
    const Tensor embeds = model.language_model.embed(at::tensor(ids, at::kLong).to(runtime.device));
    const std::string name =
        fmt::format("prefill.{:02}.{}.text", prefill_calls_,
                    branches_[distinct_[static_cast<std::size_t>(distinct)]].name);
    MotObserver observer;
    if (runtime.trace != nullptr) {
      runtime.trace->record(name + ".embeds", embeds);
      observer = [&](std::string_view what, const MotRows& seen) {
        runtime.trace->record(fmt::format("{}.{}", name, what), seen.und);
      };
    }
    model.language_model.forward(plan, {{}, embeds}, *cache_, *runtime.read_attention,
                                 runtime.kernels, observer);
    for (std::int64_t s = 0; s < samples_; ++s) {
      cache_->advance(cache_row(distinct, s), rows[static_cast<std::size_t>(s)].und_rows);
    }
    ++prefill_calls_;
  }
}

}  // namespace diptych

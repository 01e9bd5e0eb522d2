#include "lib/pipelines/drafting/text_trace.h"

#include <algorithm>

#include <fmt/format.h>

namespace diptych {
namespace {

Tensor whole_numbers(std::span<const std::int64_t> values) {
  return at::tensor(at::IntArrayRef(values.data(), values.size()), at::kLong);
}

// Iterations without drafts have one row: where there are both kinds, these are filled up.
Tensor stacked(const std::vector<Tensor>& iterations) {
  return at::pad_sequence(iterations, /*batch_first=*/true, -1);
}

}  // namespace

void TextTrace::record(std::string_view name, const Tensor& value) {
  if (sink_ != nullptr) sink_->record(name, value);
}

void TextTrace::whole(std::string_view what, const Tensor& value) {
  if (sink_ != nullptr) sink_->record(fmt::format("{}.{}", group_, what), value);
}

void TextTrace::prefill(std::string_view what, const Tensor& value) {
  if (sink_ != nullptr) sink_->record(fmt::format("prefill.{}", what), value);
}

void TextTrace::block(std::string_view what, const Tensor& value) {
  if (sink_ != nullptr) sink_->record(fmt::format("block{:03}.{}", iteration_, what), value);
}

void TextTrace::context(std::string_view what, const Tensor& rows) {
  if (sink_ != nullptr) pending_.emplace_back(what, rows);
}

void TextTrace::keep(const Named& more, std::int64_t rows) {
  const Tensor counted = more.second.narrow(0, 0, rows);
  const auto found = std::ranges::find(context_, more.first, &Named::first);
  if (found == context_.end()) {
    context_.emplace_back(more.first, counted);
  } else {
    found->second = at::cat({found->second, counted});
  }
}

void TextTrace::noise(const Tensor& rows) {
  if (wants("sampling.noise")) noise_.push_back(rows);
}

void TextTrace::begin_draft(std::int64_t start, std::int64_t width) {
  if (sink_ == nullptr) return;
  block("position_ids", at::arange(drafter_length_, start + width, at::kLong));
  for (const Named& rows : pending_) keep(rows, rows.second.size(0));  // of the prefill
  pending_.clear();
  for (const auto& [what, rows] : context_) block(what, rows);
  context_.clear();
  lengths_before_.push_back(drafter_length_);
  contexts_.push_back(start - drafter_length_);
  drafter_length_ = start;
}

void TextTrace::end_block(std::int64_t start, std::span<const std::int64_t> block,
                          std::span<const std::int64_t> choices, std::int64_t acceptance) {
  if (sink_ == nullptr) return;
  starts_.push_back(start);
  blocks_.push_back(whole_numbers(block));
  choices_.push_back(whole_numbers(choices));
  acceptance_.push_back(acceptance);
  for (const Named& rows : pending_) keep(rows, acceptance);
  pending_.clear();
  ++iteration_;
}

void TextTrace::finish() {
  if (sink_ == nullptr || iteration_ == 0) return;
  whole("start", whole_numbers(starts_));
  whole("acceptance_lengths", whole_numbers(acceptance_));
  const Tensor blocks = stacked(blocks_);
  whole("block_ids", blocks);
  whole("posterior_ids", stacked(choices_));
  if (!lengths_before_.empty()) {
    whole("draft_ids", blocks.narrow(1, 1, blocks.size(1) - 1));
    whole("draft_cache_len_before", whole_numbers(lengths_before_));
    whole("context_len", whole_numbers(contexts_));
  }
  if (!noise_.empty()) sink_->record("sampling.noise", stacked(noise_));
}

}  // namespace diptych

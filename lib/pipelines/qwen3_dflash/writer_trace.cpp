#include "lib/pipelines/qwen3_dflash/writer_trace.h"

#include <fmt/format.h>

namespace diptych {
namespace {

Tensor whole_numbers(const std::vector<std::int64_t>& values) {
  return at::tensor(values, at::kLong);
}

}  // namespace

void TextTrace::record(std::string_view name, const Tensor& value) {
  if (sink_ != nullptr) sink_->record(name, value);
}

void TextTrace::prefill(std::string_view what, const Tensor& value) {
  if (sink_ != nullptr) sink_->record(fmt::format("prefill.{}", what), value);
}

void TextTrace::block(std::string_view what, const Tensor& value) {
  if (sink_ != nullptr) sink_->record(fmt::format("block{:03}.{}", iteration_, what), value);
}

void TextTrace::context(std::string_view what, const Tensor& rows) {
  if (sink_ != nullptr) context_.emplace_back(what, rows);
}

void TextTrace::noise(const Tensor& rows) {
  if (wants("sampling.noise")) noise_.push_back(rows);
}

void TextTrace::begin_draft(std::int64_t start, std::int64_t width) {
  if (sink_ == nullptr) return;
  block("position_ids", at::arange(drafter_length_, start + width, at::kLong));
  for (const auto& [what, rows] : context_)
    block(what, kept_ < 0 ? rows : rows.narrow(0, 0, kept_));
  context_.clear();
  lengths_before_.push_back(drafter_length_);
  contexts_.push_back(start - drafter_length_);
  drafter_length_ = start;
}

void TextTrace::end_block(std::int64_t start, std::span<const std::int64_t> block,
                          std::span<const std::int64_t> choices, std::int64_t acceptance) {
  if (sink_ == nullptr) return;
  starts_.push_back(start);
  blocks_.insert(blocks_.end(), block.begin(), block.end());
  choices_.insert(choices_.end(), choices.begin(), choices.end());
  acceptance_.push_back(acceptance);
  kept_ = acceptance;
  ++iteration_;
}

void TextTrace::finish() {
  if (sink_ == nullptr || iteration_ == 0) return;
  const auto record_ids = [&](const char* name, const Tensor& value) {
    sink_->record(fmt::format("dflash.{}", name), value);
  };
  record_ids("start", whole_numbers(starts_));
  record_ids("acceptance_lengths", whole_numbers(acceptance_));
  const Tensor blocks = whole_numbers(blocks_).view({iteration_, -1});
  record_ids("block_ids", blocks);
  record_ids("posterior_ids", whole_numbers(choices_).view({iteration_, -1}));
  if (!lengths_before_.empty()) {
    record_ids("draft_ids", blocks.narrow(1, 1, blocks.size(1) - 1));
    record_ids("draft_cache_len_before", whole_numbers(lengths_before_));
    record_ids("context_len", whole_numbers(contexts_));
  }
  if (!noise_.empty()) sink_->record("sampling.noise", at::stack(noise_));
}

}  // namespace diptych

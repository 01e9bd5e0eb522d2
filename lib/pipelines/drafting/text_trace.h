// Records what happens to one text, under the names that a recording of its family has for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/tensor/trace.h"

namespace diptych {

class TextTrace {
 public:
  TextTrace() = default;
  // `group`: what the names of a whole text begin with.
  TextTrace(TraceSink* sink, std::string group) : sink_(sink), group_(std::move(group)) {}
  // Whether anything is recorded; where it is not, none of the others does anything.
  explicit operator bool() const { return sink_ != nullptr; }
  bool wants(std::string_view name) const { return sink_ != nullptr && sink_->wants(name); }

  void record(std::string_view name, const Tensor& value);
  void whole(std::string_view what, const Tensor& value);    // "GROUP.WHAT"
  void prefill(std::string_view what, const Tensor& value);  // "prefill.WHAT"
  void block(std::string_view what, const Tensor& value);    // "blockKKK.WHAT" of this iteration
  // Of a context that the next drafter call has behind what it had before: all of these rows at the
  // prefill, else as many of them as are accepted. The values must not change afterwards.
  void context(std::string_view what, const Tensor& rows);
  void noise(const Tensor& rows);  // [rows, vocab], of one iteration
  template <typename Make>
  void first_probabilities(const Make& make) {  // [rows, vocab], of the first iteration
    constexpr const char* kName = "sampling.block000.probs";
    if (iteration_ == 0 && wants(kName)) sink_->record(kName, make());
  }

  // A drafter call begins: records its positions and its context. `start`: the anchor's position.
  void begin_draft(std::int64_t start, std::int64_t width);
  // An iteration ends. `block`: the ids that were verified, `choices`: the target's, behind each.
  void end_block(std::int64_t start, std::span<const std::int64_t> block,
                 std::span<const std::int64_t> choices, std::int64_t acceptance);
  // The text ends: records what iterations have gathered.
  void finish();

 private:
  TraceSink* sink_ = nullptr;
  std::string group_;
  using Named = std::pair<std::string, Tensor>;
  // Rows of a context that count: the rows of `more` follow those that are there.
  void keep(const Named& more, std::int64_t rows);

  std::int64_t iteration_ = 0, drafter_length_ = 0;
  std::vector<Named> pending_, context_;  // of this iteration; since the last drafter call
  std::vector<std::int64_t> starts_, acceptance_, lengths_before_, contexts_;
  std::vector<Tensor> blocks_, choices_, noise_;  // of each iteration
};

}  // namespace diptych

// The acceptance rule of speculative decoding with drafts that were chosen greedily: of a block's
// drafts the longest run that equals the target's own choices is kept, and the choice behind it.
// Whether these are argmax or draws, the text is distributed as the target's alone.
// specs: dflash.md sections 6 and 7. Port of z-lab/dflash @44947fb, dflash/model.py.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/tensor/types.h"

namespace diptych {

// drafts int64 [texts, width - 1]: the tokens behind each block's anchor; choices int64 [texts,
// width]: what the target puts behind each row -> int64 [texts], the accepted drafts + 1: as many
// choices from the front are the new tokens. Any device; reads nothing back.
Tensor acceptance_lengths(const Tensor& drafts, const Tensor& choices);

struct TextLimits {
  std::int64_t max_new_tokens = 0;     // at least 1
  std::vector<std::int64_t> stop_ids;  // the first of them ends the text and is its last token
};

// The new tokens of one text as they are decided, cut by its limits.
class DecidedText {
 public:
  explicit DecidedText(TextLimits limits);
  // Adds what the prefill or an iteration decided -> those of them that count, until the next call.
  std::span<const std::int64_t> add(std::span<const std::int64_t> ids);
  const std::vector<std::int64_t>& ids() const { return ids_; }
  // All that was decided, cut or not: the length of prompt and text in the cache is that of the
  // prompt and one less than this.
  std::int64_t decided() const { return decided_; }
  bool stopped() const { return stopped_; }  // the last of ids() is a stop id
  // Whether no further iteration is run. As in the reference, it is to be asked behind an iteration
  // only, and one runs even where the tokens that are there are as many as allowed.
  bool ended() const { return stopped_ || decided_ > limits_.max_new_tokens; }

 private:
  TextLimits limits_;
  std::vector<std::int64_t> ids_;
  std::int64_t decided_ = 0;
  bool stopped_ = false;
};

}  // namespace diptych

// Texts of a MoT backbone that a drafter drafts: the understanding experts verify a block of tokens
// in one forward. Operations are launched one by one, on CUDA, too.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lib/pipelines/drafting/speculative_writer.h"
#include "lib/pipelines/mot/contexts.h"
#include "lib/pipelines/mot/text_decoder.h"

namespace diptych {

// The backbone as the target of drafts. It must outlive what is made of the target.
TextTarget text_target(const MotBackbone& backbone);

struct DraftedTokens {
  std::vector<std::int64_t> fed;         // as TextDecoder::decode has them
  std::vector<std::int64_t> acceptance;  // as SpeculativeText
};

struct DraftedStart {
  DecodeStart decode;           // of at least two tokens
  std::int64_t block_size = 0;  // as SpeculativeRequest
};

// Keeps its caches from one text to the next.
class DraftedDecoder {
 public:
  // All must outlive it.
  DraftedDecoder(const MotBackbone& backbone, const BlockDrafter& drafter, const Runtime& runtime);
  // To look on while a context of so many rows is read that a text follows: makes room for both.
  ContextObserver watch(std::int64_t rows, const DraftedStart& start);
  // The text behind the context in that row of a cache, of which watch() has seen every call. What
  // the model alone would write: a sampled token has the same draw whether it was drafted or not,
  // and the generator is left where TextDecoder::decode leaves it.
  DraftedTokens decode(const KvCache& contexts, std::int64_t row, const DraftedStart& start,
                       at::Generator& generator, const DecodeProgress& progress);
  std::int64_t capacity() const { return writer_.capacity(); }  // rows of the cache that is kept

 private:
  const BlockDrafter& drafter_;
  const QwenConfig& config_;
  const Runtime& runtime_;
  SpeculativeWriter writer_;
};

}  // namespace diptych

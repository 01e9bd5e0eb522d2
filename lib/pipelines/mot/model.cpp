#include "lib/pipelines/mot/model.h"

#include "lib/base/error.h"

namespace diptych {

std::vector<std::int64_t> MotModel::text_segment(std::string_view text) const {
  std::vector<std::int64_t> segment = {bos};
  const std::vector<std::int64_t> ids = tokenizer.encode(text);
  segment.insert(segment.end(), ids.begin(), ids.end());
  segment.push_back(eos);
  // The image block that follows takes one more position.
  const std::int64_t most = backbone.config.max_position_embeddings - 1;
  const auto found = static_cast<std::int64_t>(segment.size());
  if (found > most)
    throw InputError(Setting::of("prompt"), "{} tokens, expected at most {}", found, most);
  check_vocabulary(segment);
  return segment;
}

void MotModel::check_vocabulary(std::span<const std::int64_t> tokens) const {
  for (const std::int64_t token : tokens) {
    if (token >= backbone.config.vocab_size) {
      throw InputError(Setting::of("prompt"), "token id {} is beyond the model's vocabulary of {}",
                       token, backbone.config.vocab_size);
    }
  }
}

}  // namespace diptych

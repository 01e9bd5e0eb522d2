// What a T5 tokenizer does with text before it looks for pieces: the normalizer and the
// pre_tokenizer of tokenizer.json, as huggingface/tokenizers has them. Other kinds of steps are
// refused by name.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lib/text/json_node.h"

namespace diptych {

using NormalizerStep = std::function<std::string(std::string text)>;  // valid UTF-8, as the result

struct Word {
  std::string text;       // valid UTF-8
  bool at_start = false;  // nothing of the whole text stands before it
};
// Appends the words into which one is cut.
using SplitStep = std::function<void(const Word& word, std::vector<Word>& words)>;

// The steps in order, none where there is null or nothing; a Sequence holds several. Precompiled,
// Strip and Replace (a text, or the pattern " {2,}"); Metaspace and WhitespaceSplit. Throws
// InputError with the place of what is unknown or broken.
std::vector<NormalizerStep> read_normalizer(const json_node::Node& node);
std::vector<SplitStep> read_pre_tokenizer(const json_node::Node& node);

}  // namespace diptych

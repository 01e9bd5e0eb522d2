// A T5 tokenizer: the Unigram model of tokenizer.json (T. Kudo 2018, arXiv:1804.10959), as
// T5TokenizerFast runs it (huggingface/tokenizers 0.22). Nothing of a model is built in; the file
// says how text is normalised and cut.
// Order: added tokens, normalizer, added tokens that are looked for behind it, words, pieces, and
// the tokens that stand around every text. Characters without a piece become the unknown token, a
// run of them in a word one; byte pieces are never put in their place, unlike in sentencepiece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/text/added_tokens.h"
#include "lib/text/piece_trie.h"
#include "lib/text/unigram_files.h"

namespace diptych {

class UnigramTokenizer {
 public:
  // From tokenizer.json in `folder`. Throws InputError for a file that is missing or broken, or
  // that asks for what is not implemented; it names the file.
  static UnigramTokenizer load(const std::filesystem::path& folder);
  explicit UnigramTokenizer(UnigramTables tables);

  // With the tokens around the text: "" becomes [1] where </s> = 1 ends every text. Linear in the
  // text. Throws InputError for text that is not valid UTF-8 (says the byte offset).
  std::vector<std::int64_t> encode(std::string_view text) const;
  // What encode() returned, cut to `max_length` ids, of which the tokens around the text are some:
  // its first 511 pieces and </s> of 512.
  std::vector<std::int64_t> truncate(std::vector<std::int64_t> ids, std::size_t max_length) const;

  std::int64_t size() const { return size_; }  // one past the largest id

 private:
  void encode_raw(std::string_view text, bool at_start, std::vector<std::int64_t>& ids) const;
  void encode_normalised(std::string_view text, bool at_start,
                         std::vector<std::int64_t>& ids) const;
  void encode_word(std::string_view word, std::vector<std::int64_t>& ids) const;

  UnigramTables tables_;
  PieceTrie trie_;
  AddedTokens raw_added_, normalised_added_;
  double unknown_score_ = 0;
  std::int64_t size_ = 0;
};

}  // namespace diptych

// The "precompiled charsmap" of a sentencepiece model, which tokenizer.json holds as base64: a trie
// from characters to the text that stands for them.
// Format: sentencepiece, src/normalizer.cc (DecodePrecompiledCharsMap) and the double arrays of
// darts-clone. Applied as huggingface/tokenizers does (normalizers/precompiled.rs and the crate
// spm_precompiled), which differs from sentencepiece where a mark follows a character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace diptych {

class Charsmap {
 public:
  // Throws InputError "<place>: ..." for what is no base64, or too short for the trie it announces.
  static Charsmap parse(std::string_view base64, std::string_view place);

  // Valid UTF-8 to valid UTF-8. A grapheme cluster of up to five bytes of which a prefix is in the
  // map is replaced as a whole, with the marks behind the prefix; of others each character is
  // looked up. Throws as first_cluster_length().
  std::string apply(std::string_view text) const;

 private:
  // What stands for the shortest prefix of `bytes` that is in the trie.
  std::optional<std::string_view> find(std::string_view bytes) const;
  std::string_view replacement(std::uint32_t offset) const;

  std::vector<std::uint32_t> units_;  // of the double array
  std::string replacements_;          // each ends with NUL
};

}  // namespace diptych

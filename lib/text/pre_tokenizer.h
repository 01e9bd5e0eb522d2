// Cuts text into the words within which byte pairs are merged: the pattern of Qwen2Tokenizer
// (transformers 4.49, models/qwen2/tokenization_qwen2.py, PRETOKENIZE_REGEX),
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*
//   |\s*[\r\n]+|\s+(?!\S)|\s+
// Written out by hand because regular expression libraries disagree on what a letter is: the
// classes here are those of the reference's regex module, whatever is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace diptych {

// \p{L}, \p{N}, \s and the rest; the three do not overlap.
enum class CharacterClass : std::uint8_t { other, letter, number, whitespace };

CharacterClass character_class(char32_t code_point);

// Bytes of the first word of `text` (valid UTF-8, not empty); every text starts with one.
std::size_t first_word_length(std::string_view text);

}  // namespace diptych

// GPT-2's byte alphabet: a printable character for each of the 256 bytes, so that vocabulary files
// can be text (openai/gpt-2, src/encoder.py, bytes_to_unicode).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace diptych {

// The 256 bytes in the order in which the alphabet, and with it ids 0..255, lists them: those that
// stand for themselves, then the other 68, which stand at U+0100 onwards.
const std::array<std::uint8_t, 256>& alphabet_order();

std::string alphabet_text(std::uint8_t byte);  // the character of `byte` as UTF-8

bool is_in_alphabet(std::string_view piece);  // every character of it

// The bytes that `piece` (text in the alphabet) stands for; nothing if a character is not in it.
std::optional<std::string> alphabet_bytes(std::string_view piece);

}  // namespace diptych

// UTF-8 in both directions, strictly: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lib/base/error.h"

namespace diptych {

struct Utf8Character {
  char32_t code_point;  // U+FFFD where not valid
  std::size_t length;   // bytes; of invalid ones the maximal subpart (Unicode 3.9, table 3-8), >= 1
  bool valid;
};

// The character that starts at `offset` (< text.size()).
Utf8Character utf8_at(std::string_view text, std::size_t offset);

void append_utf8(std::string& text, char32_t code_point);

// `bytes` with every maximal invalid subpart replaced by U+FFFD, as CPython's
// bytes.decode("utf-8", errors="replace") does.
std::string replace_invalid_utf8(std::string_view bytes);

// The largest code point of `text`, 0 if it is empty. Throws InputError with the byte offset of the
// first thing that is not UTF-8.
char32_t check_utf8(std::string_view text);

// Throws InputError "<where>: ..." where the text holds a NUL or is not valid UTF-8.
void check_text(std::string_view text, const Subject& where);

}  // namespace diptych

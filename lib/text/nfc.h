// Unicode normalisation form C, which the Qwen2 tokenizer applies to every text first.
#pragma once

#include <string>
#include <string_view>

namespace diptych {

// Below this code point every text is in form C already: no character there decomposes into
// something that does not compose again, and none combines with the one before it.
inline constexpr char32_t kFirstNormalised = 0x300;

// `text` (valid UTF-8) in form C. Unassigned code points, noncharacters and U+0000 stay. Throws
// InputError for text with code points from kFirstNormalised on where the build lacks utf8proc.
std::string to_nfc(std::string_view text);

}  // namespace diptych

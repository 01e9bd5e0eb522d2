// ftfy's fix_text() with its defaults (rspeer/python-ftfy 6.3.1, Apache 2.0): HTML references,
// ligatures, width forms, quotes, line breaks, escape sequences of terminals, control characters,
// normalisation form C; line by line, until nothing changes.
// Of its repair of mojibake (text decoded in the wrong encoding) only the most common kind is
// here: a whole line of UTF-8 that was read as Latin-1 or windows-1252 (lib/text/mojibake.h).
#pragma once

#include <string>
#include <string_view>

namespace diptych {

// Valid UTF-8 to valid UTF-8. Throws as to_nfc().
std::string fix_text(std::string_view text);

}  // namespace diptych

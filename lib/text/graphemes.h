// Extended grapheme clusters (UAX #29): what a reader takes for one character.
#pragma once

#include <cstddef>
#include <string_view>

namespace diptych {

// Bytes of the first cluster of `text` (valid UTF-8, not empty). Throws InputError for a code point
// from kFirstNormalised on (lib/text/nfc.h) where the build lacks utf8proc: below it, a line break
// CR LF is the only cluster of two characters.
std::size_t first_cluster_length(std::string_view text);

}  // namespace diptych

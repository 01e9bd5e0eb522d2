// HTML character references back to characters.
#pragma once

#include <string>
#include <string_view>

namespace diptych {

// As Python's html.unescape(): names with the longest known beginning where the ';' is missing,
// numbers with the repairs of HTML5. Valid UTF-8 to valid UTF-8.
std::string unescape_html(std::string_view text);

// As ftfy 6.3.1's unescape_html(): only what ends in ';', and names in capitals where those are
// not taken.
std::string unescape_closed_html(std::string_view text);

// What stands for a half or full width form (U+3000, U+FF01..U+FFEF), else nothing.
std::string_view width_form(char32_t code_point);

}  // namespace diptych

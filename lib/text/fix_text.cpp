#include "lib/text/fix_text.h"

#include <algorithm>
#include <cstddef>

#include "lib/base/utf8.h"
#include "lib/text/html_entities.h"
#include "lib/text/mojibake.h"
#include "lib/text/nfc.h"
#include "lib/text/windows_1252.h"

namespace diptych {
namespace {

struct Ligature {
  char32_t code_point;
  std::string_view letters;
};

// chardata.py, LIGATURES.
constexpr Ligature kLigatures[] = {
    {0x132, "IJ"},       {0x133, "ij"},  {0x149, "\u02BCn"}, {0x1C4, "D\u017D"}, {0x1C5, "D\u017E"},
    {0x1C6, "d\u017E"},  {0x1C7, "LJ"},  {0x1C8, "Lj"},      {0x1C9, "lj"},      {0x1CA, "NJ"},
    {0x1CB, "Nj"},       {0x1CC, "nj"},  {0x1F1, "DZ"},      {0x1F2, "Dz"},      {0x1F3, "dz"},
    {0xFB00, "ff"},      {0xFB01, "fi"}, {0xFB02, "fl"},     {0xFB03, "ffi"},    {0xFB04, "ffl"},
    {0xFB05, "\u017Ft"}, {0xFB06, "st"}};

// `replace(code point)`: what stands for a character, or "" and it stays.
template <typename Replace>
std::string replace_characters(std::string_view text, const Replace& replace) {
  std::string replaced;
  replaced.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    const std::string_view other = replace(character.code_point);
    replaced += other.empty() ? text.substr(i, character.length) : other;
    i += character.length;
  }
  return replaced;
}

std::string_view letters_of(char32_t c) {
  const auto* found = std::ranges::lower_bound(kLigatures, c, {}, &Ligature::code_point);
  return found != std::end(kLigatures) && found->code_point == c ? found->letters : "";
}

std::string_view straight_quote(char32_t c) {
  if (c >= 0x201C && c <= 0x201F) return "\"";
  return c == 0x2BC || (c >= 0x2018 && c <= 0x201B) ? "'" : "";
}

std::string_view line_break(char32_t c) {
  return c == U'\r' || c == 0x2028 || c == 0x2029 || c == 0x85 ? "\n" : "";
}

std::string fix_line_breaks(std::string text) {
  std::string joined;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!std::string_view(text).substr(i).starts_with("\r\n")) joined += text[i];
  }
  return replace_characters(joined, line_break);
}

std::string fix_c1_controls(std::string_view text) {
  std::string fixed;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    append_utf8(fixed, from_windows_1252(character.code_point));
    i += character.length;
  }
  return fixed;
}

// `ESC [ (digits and ;)* letter`
std::string remove_terminal_escapes(std::string_view text) {
  std::string rest;
  while (!text.empty()) {
    const std::size_t escape = std::min(text.find("\x1B["), text.size());
    rest += text.substr(0, escape);
    text.remove_prefix(escape);
    if (text.empty()) break;
    const std::size_t end = text.find_first_not_of("0123456789;", 2);
    const char letter = end == std::string_view::npos ? '\0' : static_cast<char>(text[end] | 0x20);
    const bool is_whole = letter >= 'a' && letter <= 'z';
    if (!is_whole) rest += text.substr(0, 2);
    text.remove_prefix(is_whole ? end + 1 : 2);
  }
  return rest;
}

// chardata.py, CONTROL_CHARS.
bool is_removed(char32_t c) {
  return c <= 8 || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F ||
         (c >= 0x206A && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC);
}

std::string remove_control_characters(std::string_view text) {
  std::string rest;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    if (!is_removed(character.code_point)) rest += text.substr(i, character.length);
    i += character.length;
  }
  return rest;
}

// __init__.py, fix_and_explain().
std::string fix_line(std::string text, bool unescapes) {
  for (std::string before; before != text;) {
    before = text;
    if (unescapes) text = unescape_closed_html(text);
    text = repair_mojibake(text);
    text = fix_c1_controls(text);
    text = replace_characters(text, letters_of);
    text = replace_characters(text, width_form);
    text = replace_characters(text, straight_quote);
    text = fix_line_breaks(text);
    text = remove_terminal_escapes(text);
    text = remove_control_characters(text);
    if (check_utf8(text) >= kFirstNormalised) text = to_nfc(text);
  }
  return text;
}

}  // namespace

std::string fix_text(std::string_view text) {
  std::string fixed;
  bool unescapes = true;  // until a line has a '<': then it may be HTML that is meant
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    unescapes = unescapes && line.find('<') == std::string_view::npos;
    fixed += fix_line(std::string(line), unescapes);
    text.remove_prefix(end);
  }
  return fixed;
}

}  // namespace diptych

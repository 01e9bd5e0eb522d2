#include "lib/text/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "lib/base/utf8.h"

namespace diptych {

namespace {

using enum CharacterClass;

struct ClassRange {
  char32_t first, last;
  CharacterClass kind;
};

constexpr ClassRange kRanges[] = {
#include "lib/text/unicode_classes.inc"
};

CharacterClass find_class(char32_t code_point) {
  const auto* range = std::ranges::lower_bound(kRanges, code_point, {}, &ClassRange::last);
  const bool inside = range != std::end(kRanges) && range->first <= code_point;
  return inside ? range->kind : other;
}

bool is_newline(char32_t c) {
  return c == U'\r' || c == U'\n';
}

// A place in the text and the character there; past the end nothing is of any class.
struct Cursor {
  explicit Cursor(std::string_view whole, std::size_t at = 0) : text(whole), offset(at) { read(); }
  void advance() {
    offset += length;
    read();
  }
  bool at_end() const { return offset == text.size(); }
  bool is(CharacterClass wanted) const { return !at_end() && kind == wanted; }
  bool newline() const { return !at_end() && is_newline(code_point); }

  std::string_view text;
  std::size_t offset;
  std::size_t length = 0;
  char32_t code_point = 0;
  CharacterClass kind = other;

 private:
  void read() {
    if (at_end()) return;
    const Utf8Character character = utf8_at(text, offset);
    code_point = character.code_point;
    length = character.length;
    kind = character_class(code_point);
  }
};

// (?i:'s|'t|'re|'ve|'m|'ll|'d): its length, or 0. U+017F is a case variant of s; no other letter
// here has one outside ASCII.
std::size_t contraction_length(std::string_view text) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  const auto lower = [&](std::size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && lower(2) == 'e') return 3;
  if (first == 'l' && lower(2) == 'l') return 3;
  return text.substr(1).starts_with("\u017F") ? 3 : 0;
}

// The three alternatives that start with whitespace, for a run of it at the start of `text`. Up to
// its last line break if it has one; otherwise all of it, less the last character where a word
// follows and that leaves something.
std::size_t whitespace_length(std::string_view text) {
  Cursor cursor(text);
  std::size_t after_newline = 0, last_start = 0;
  while (cursor.is(whitespace)) {
    const bool newline = cursor.newline();
    last_start = cursor.offset;
    cursor.advance();
    if (newline) after_newline = cursor.offset;
  }
  if (after_newline > 0) return after_newline;
  if (cursor.at_end() || last_start == 0) return cursor.offset;
  return last_start;
}

}  // namespace

CharacterClass character_class(char32_t code_point) {
  static const std::array<CharacterClass, 128> ascii = [] {
    std::array<CharacterClass, 128> classes{};
    for (std::size_t c = 0; c < classes.size(); ++c) {
      classes[c] = find_class(static_cast<char32_t>(c));
    }
    return classes;
  }();
  return code_point < ascii.size() ? ascii[code_point] : find_class(code_point);
}

std::size_t first_word_length(std::string_view text) {
  if (const std::size_t length = contraction_length(text); length > 0) return length;

  // [^\r\n\p{L}\p{N}]?\p{L}+
  Cursor cursor(text);
  if (!cursor.newline() && !cursor.is(letter) && !cursor.is(number)) cursor.advance();
  if (cursor.is(letter)) {
    while (cursor.is(letter)) cursor.advance();
    return cursor.offset;
  }

  // \p{N}
  cursor = Cursor(text);
  if (cursor.is(number)) return cursor.length;

  // ` ?[^\s\p{L}\p{N}]+[\r\n]*`
  if (cursor.code_point == U' ') cursor.advance();
  if (cursor.is(other)) {
    while (cursor.is(other)) cursor.advance();
    while (cursor.newline()) cursor.advance();
    return cursor.offset;
  }
  return whitespace_length(text);
}

}  // namespace diptych

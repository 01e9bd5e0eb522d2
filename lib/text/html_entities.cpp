#include "lib/text/html_entities.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include <fmt/format.h>

#include "lib/base/utf8.h"
#include "lib/text/windows_1252.h"

namespace diptych {
namespace {

struct Entity {
  std::string_view name, text;
};
struct WidthForm {
  char32_t code_point;
  std::string_view text;
};

#include "lib/text/prompt_tables.inc"

const Entity* find(std::span<const Entity> entities, std::string_view name) {
  const auto found = std::ranges::lower_bound(entities, name, {}, &Entity::name);
  return found != entities.end() && found->name == name ? &*found : nullptr;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// A reference at the start of a text, behind its '&': the bytes of it, and what it stands for.
struct Reference {
  std::size_t length = 0;
  std::string text;
};

bool is_control(char32_t c) {
  return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F;
}
bool is_noncharacter(char32_t c) {
  return (c >= 0xFDD0 && c <= 0xFDEF) || (c & 0xFFFE) == 0xFFFE;
}

// CPython, Lib/html/__init__.py, _replace_charref.
std::string text_of_number(char32_t number) {
  std::string text;
  const bool is_surrogate = number >= 0xD800 && number <= 0xDFFF;
  if (number == 0 || is_surrogate || number > 0x10FFFF) {
    append_utf8(text, 0xFFFD);
  } else if (!is_control(number) && !is_noncharacter(number)) {
    append_utf8(text, from_windows_1252(number));
  }
  return text;
}

// "#233;" or "#xE9"; `rest` begins with '#'. No length: it is none.
Reference numeric_reference(std::string_view rest) {
  const bool hex = rest.size() > 1 && (rest[1] == 'x' || rest[1] == 'X');
  const std::size_t first = hex ? 2 : 1;
  std::size_t end = first;
  char32_t number = 0;
  while (end < rest.size() && (hex ? is_hex_digit(rest[end]) : is_digit(rest[end]))) {
    const auto digit = static_cast<char32_t>(is_digit(rest[end]) ? rest[end] - '0'
                                                                 : (rest[end] | 0x20) - 'a' + 10);
    number = std::min<char32_t>(number * (hex ? 16 : 10) + digit, 0x110000);
    ++end;
  }
  if (end == first) return {};
  if (end < rest.size() && rest[end] == ';') ++end;
  return {end, text_of_number(number)};
}

// Bytes of what may be a name: up to 32 characters, and a ';'.
std::size_t name_length(std::string_view rest) {
  constexpr int kMostCharacters = 32;
  constexpr std::string_view kEnds("\t\n\f <&#;", 8);
  std::size_t length = 0;
  for (int i = 0; i < kMostCharacters && length < rest.size(); ++i) {
    if (kEnds.find(rest[length]) != std::string_view::npos) break;
    length += utf8_at(rest, length).length;
  }
  const bool closed = length > 0 && length < rest.size() && rest[length] == ';';
  return length + (closed ? 1 : 0);
}

Reference named_reference(std::string_view rest) {
  const std::size_t length = name_length(rest);
  constexpr std::size_t kShortest = 2;
  for (std::size_t i = length; i >= kShortest; --i) {
    if (const Entity* entity = find(kEntities, rest.substr(0, i)))
      return {i, std::string(entity->text)};
  }
  return {length, fmt::format("&{}", rest.substr(0, length))};
}

// `&#?[0-9A-Za-z]{1,24};` alone, with what stands for it, or as it is.
Reference closed_reference(std::string_view rest) {
  constexpr std::size_t kMostLetters = 24;
  const bool numeric = rest.starts_with('#');
  const std::size_t first = numeric ? 1 : 0;
  std::size_t end = first;
  while (end < rest.size() && (is_digit(rest[end]) || is_letter(rest[end]))) ++end;
  if (end == first || end - first > kMostLetters || end == rest.size() || rest[end] != ';')
    return {};
  const std::string_view whole = rest.substr(0, end + 1);
  if (numeric) {
    Reference reference = numeric_reference(whole);
    // Of "&#59;", which is ';', and of what is no number nothing is changed.
    if (reference.length == whole.size() && reference.text != ";") return reference;
  } else {
    for (const auto entities :
         {std::span<const Entity>(kEntities), std::span<const Entity>(kCapitalEntities)}) {
      if (const Entity* entity = find(entities, whole))
        return {whole.size(), std::string(entity->text)};
    }
  }
  return {whole.size(), fmt::format("&{}", whole)};
}

template <typename Read>
std::string replace_references(std::string_view text, const Read& read) {
  std::string replaced;
  replaced.reserve(text.size());
  while (!text.empty()) {
    const std::size_t before = std::min(text.find('&'), text.size());
    replaced += text.substr(0, before);
    text.remove_prefix(before);
    if (text.empty()) break;
    text.remove_prefix(1);
    const Reference reference = read(text);
    replaced += reference.length == 0 ? "&" : reference.text;
    text.remove_prefix(reference.length);
  }
  return replaced;
}

}  // namespace

std::string unescape_html(std::string_view text) {
  return replace_references(text, [](std::string_view rest) {
    return rest.starts_with('#') ? numeric_reference(rest) : named_reference(rest);
  });
}

std::string unescape_closed_html(std::string_view text) {
  return replace_references(text, closed_reference);
}

std::string_view width_form(char32_t code_point) {
  const auto* found = std::ranges::lower_bound(kWidthForms, code_point, {}, &WidthForm::code_point);
  const bool inside = found != std::end(kWidthForms) && found->code_point == code_point;
  return inside ? found->text : std::string_view();
}

}  // namespace diptych

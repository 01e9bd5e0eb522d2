#include "lib/base/utf8.h"

#include <cstdint>

#include "lib/base/error.h"

namespace diptych {

namespace {

// What may follow a lead byte: the number of bytes after it and the range of the first of them
// (Unicode 15, table 3-7); the others are 80..BF.
struct Lead {
  std::size_t following;
  std::uint8_t low, high;
};

Lead lead_of(std::uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Character utf8_at(std::string_view text, std::size_t offset) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[offset + i]); };
  const std::uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true};
  Lead lead = lead_of(first);
  if (lead.following == 0) return {0xFFFD, 1, false};
  char32_t code_point = first & (0x3Fu >> lead.following);
  for (std::size_t i = 1; i <= lead.following; ++i) {
    const bool fits = offset + i < text.size() && byte(i) >= lead.low && byte(i) <= lead.high;
    if (!fits) return {0xFFFD, i, false};
    code_point = (code_point << 6) | (byte(i) & 0x3Fu);
    lead.low = 0x80;
    lead.high = 0xBF;
  }
  return {code_point, lead.following + 1, true};
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
    return;
  }
  if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | (code_point >> 12));
    } else {
      put(0xF0 | (code_point >> 18));
      put(0x80 | ((code_point >> 12) & 0x3F));
    }
    put(0x80 | ((code_point >> 6) & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Character character = utf8_at(bytes, i);
    if (character.valid) {
      text += bytes.substr(i, character.length);
    } else {
      append_utf8(text, character.code_point);
    }
    i += character.length;
  }
  return text;
}

char32_t check_utf8(std::string_view text) {
  char32_t largest = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    if (!character.valid) {
      throw InputError("text is not valid UTF-8: byte 0x{:02X} at offset {}",
                       static_cast<std::uint8_t>(text[i]), i);
    }
    if (character.code_point > largest) largest = character.code_point;
    i += character.length;
  }
  return largest;
}

void check_text(std::string_view text, const Subject& where) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Character character = utf8_at(text, i);
    if (!character.valid) {
      throw where.error("not valid UTF-8: byte 0x{:02X} at offset {}",
                        static_cast<unsigned char>(text[i]), i);
    }
    if (character.code_point == 0) throw where.error("a NUL character at offset {}", i);
    i += character.length;
  }
}

}  // namespace diptych

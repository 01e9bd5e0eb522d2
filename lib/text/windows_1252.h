// The encoding windows-1252, which differs from Latin-1 in 0x80..0x9F; the five bytes it does not
// assign stand for the control characters of Latin-1 (what browsers do).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace diptych {

inline constexpr std::array<char16_t, 32> kWindows1252 = {
    0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021, 0x2C6,  0x2030, 0x160,
    0x2039, 0x152,  0x8D,   0x17D,  0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

// The character of a byte; what is beyond U+009F stays.
constexpr char32_t from_windows_1252(char32_t byte) {
  return byte >= 0x80 && byte < 0xA0 ? kWindows1252[byte - 0x80] : byte;
}

// The byte of a character, or nothing.
constexpr std::optional<std::uint8_t> to_windows_1252(char32_t c) {
  for (std::size_t i = 0; i < kWindows1252.size(); ++i) {
    if (kWindows1252[i] == c) return static_cast<std::uint8_t>(0x80 + i);
  }
  if (c > 0xFF || (c >= 0x80 && c < 0xA0)) return std::nullopt;
  return static_cast<std::uint8_t>(c);
}

}  // namespace diptych

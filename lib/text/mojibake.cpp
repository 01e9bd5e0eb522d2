#include "lib/text/mojibake.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/base/utf8.h"
#include "lib/text/pre_tokenizer.h"
#include "lib/text/windows_1252.h"

namespace diptych {
namespace {

// Kinds of characters: those of ftfy's badness.py as far as the two encodings have them, and what
// its patterns name besides.
enum Kind : std::uint32_t {
  kC1 = 1u << 0,
  kBad = 1u << 1,
  kLaw = 1u << 2,
  kCurrency = 1u << 3,
  kStart = 1u << 4,  // punctuation
  kEnd = 1u << 5,
  kNumeric = 1u << 6,
  kUpper = 1u << 7,  // accented letters
  kLower = 1u << 8,
  kThorn = 1u << 9,
  kCommon = 1u << 10,
  kSmall = 1u << 11,    // a-z
  kCapital = 1u << 12,  // A-Z
  kOther = 1u << 13,    // no letter of ASCII
  kSpace = 1u << 14,    // \s
  kBlank = 1u << 15,    // ' '
  kWord = 1u << 16,     // \w
  kOe = 1u << 17,       // the ligature
  kDegree = 1u << 18,
  kLead = 1u << 19,    // first byte of common characters
  kSecond = 1u << 20,  // second byte of them
  kTimes = 1u << 21,
  kPower = 1u << 22,
  kArabic = 1u << 23,    // first byte of Arabic letters
  kInArabic = 1u << 24,  // second byte of them
  kAGrave = 1u << 25,
  kIndic = 1u << 26,  // behind it
  kAHat = 1u << 27,
  kATilde = 1u << 28,
  kStop = 1u << 29,  // .,?!
};
constexpr std::uint32_t kLetter = kSmall | kCapital;
constexpr std::uint32_t kAccented = kLower | kUpper;
constexpr std::uint32_t kMeant = kAccented | kStart | kEnd | kCurrency | kNumeric | kLaw;

struct Members {
  std::uint32_t kinds;
  std::u32string_view characters;
};
constexpr Members kMembers[] = {
    {kCommon, U"\u00A0\u00AD\u00B7\u00B4\u2013\u2014\u2026\u2019"},
    {kBad, U"\u00A6\u00A4\u00A8\u00AC\u00AF\u00B8\u0192\u02C6\u02DC\u2020\u2021\u2030\u00AA\u00BA"},
    {kLaw, U"\u00B6\u00A7"},
    {kCurrency, U"\u00A2\u00A3\u00A5\u20AC"},
    {kStart, U"\u00A1\u00AB\u00BF\u00A9\u2018\u201A\u201C\u201E\u2022\u2039"},
    {kEnd, U"\u00AE\u00BB\u201D\u203A\u2122"},
    {kNumeric, U"\u00B2\u00B3\u00B9\u00B1\u00BC\u00BD\u00BE\u00D7\u00B5\u00F7"},
    {kUpper, U"\u00D8\u00DC\u00DD\u0152\u0160\u0178\u017D"},
    {kLower, U"\u00DF\u00FC\u0153\u0161\u017E"},
    {kThorn, U"\u00DE"},
    {kBlank, U" "},
    {kOe, U"\u0152\u0153"},
    {kDegree, U"\u00B0"},
    {kLead, U"\u00C2\u00C3\u00CE\u00D0"},
    {kSecond,
     U"\u20AC\u0153\u0160\u0161\u00A2\u00A3\u0178\u017E\u00A0\u00AD\u00AE\u00A9\u00B0\u00B7"
     U"\u00BB\u2013\u2014\u00B4"},
    {kTimes, U"\u00D7"},
    {kPower, U"\u00B2\u00B3"},
    {kArabic, U"\u00D8\u00D9"},
    {kInArabic, U"\u0178\u0160\u00AE\u00B0\u00B5\u00BB"},
    {kAGrave, U"\u00E0"},
    {kIndic, U"\u00B2\u00B5\u00B9\u00BC\u00BD\u00BE"},
    {kAHat, U"\u00C2"},
    {kATilde, U"\u00C3"},
    {kStop, U".,?!"},
    {kWord,
     U"_\u00AA\u00B2\u00B3\u00B5\u00B9\u00BA\u00BC\u00BD\u00BE\u0152\u0153\u0160\u0161\u0178"
     U"\u017D\u017E\u0192\u02C6"},
};

bool is_within(char32_t c, char32_t first, char32_t last) {
  return c >= first && c <= last;
}

std::uint32_t kinds_of(char32_t c) {
  std::uint32_t kinds = 0;
  if (is_within(c, 'a', 'z')) kinds |= kSmall | kWord;
  if (is_within(c, 'A', 'Z')) kinds |= kCapital | kWord;
  if (is_within(c, '0', '9')) kinds |= kWord;
  if (!(kinds & kLetter)) kinds |= kOther;
  if (is_within(c, 0x80, 0x9F)) kinds |= kC1;
  if (is_within(c, 0xC0, 0xD1)) kinds |= kUpper;
  if (is_within(c, 0xE0, 0xF1)) kinds |= kLower;
  if (is_within(c, 0xC0, 0xFF) && c != 0xD7 && c != 0xF7) kinds |= kWord;
  if (character_class(c) == CharacterClass::whitespace || is_within(c, 0x1C, 0x1F)) kinds |= kSpace;
  for (const Members& members : kMembers) {
    if (members.characters.find(c) != std::u32string_view::npos) kinds |= members.kinds;
  }
  return kinds;
}

// badness.py, BADNESS_RE: what each of the characters one after the other may be.
constexpr std::uint32_t kInArabicWord = kInArabic | kCommon | kCurrency | kBad | kNumeric | kStart;
constexpr std::uint32_t kAMark = kAHat | kATilde;
constexpr std::uint32_t kPatterns[][4] = {
    {kC1},
    {kBad | kMeant, kBad},
    {kLetter, kThorn, kBad},
    {kBad, kMeant},
    {kLower | kEnd | kCurrency | kNumeric, kUpper},
    {kEnd | kCurrency | kNumeric, kLower},
    {kLower | kEnd, kCurrency},
    {kSpace, kUpper, kCurrency},
    {kUpper, kNumeric | kLaw},
    {kAccented | kCurrency | kEnd, kStart, kNumeric},
    {kAccented | kCurrency | kNumeric | kLaw, kEnd, kStart},
    {kCurrency | kNumeric, kStart},
    {kSmall, kUpper, kStart | kCurrency},
    {kAccented, kStart | kEnd, kWord},
    {kOe, kOther},
    {kUpper, kDegree},
    {kLead, kSecond | kStart | kEnd},
    {kTimes, kPower},
    {kArabic, kInArabicWord, kArabic, kInArabicWord},
    {kAGrave, kIndic},
    {kSmall, kAMark, kBlank},
    {kSmall, kSpace, kAMark, kBlank},
    {kSmall | kStop | kEnd, kAHat, kBlank | kStart | kEnd},
};

bool begins_with(std::span<const std::uint32_t> kinds, std::span<const std::uint32_t> pattern) {
  for (std::size_t i = 0; i < pattern.size() && pattern[i] != 0; ++i) {
    if (i == kinds.size() || (kinds[i] & pattern[i]) == 0) return false;
  }
  return true;
}

bool looks_wrong(std::string_view line) {
  std::vector<std::uint32_t> kinds;
  for (std::size_t i = 0; i < line.size();) {
    const Utf8Character character = utf8_at(line, i);
    kinds.push_back(kinds_of(character.code_point));
    i += character.length;
  }
  if (kinds.size() > 1 && (kinds[0] & kAMark) && (kinds[1] & kBlank)) return true;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    for (const auto& pattern : kPatterns) {
      if (begins_with(std::span(kinds).subspan(i), pattern)) return true;
    }
  }
  return false;
}

std::optional<std::uint8_t> to_latin_1(char32_t c) {
  if (c > 0xFF) return std::nullopt;
  return static_cast<std::uint8_t>(c);
}

// The line as bytes of the encoding, where those are UTF-8.
std::optional<std::string> read_again(std::string_view line,
                                      std::optional<std::uint8_t> (*encode)(char32_t)) {
  std::string bytes;
  for (std::size_t i = 0; i < line.size();) {
    const Utf8Character character = utf8_at(line, i);
    const auto byte = encode(character.code_point);
    if (!byte) return {};
    bytes += static_cast<char>(*byte);
    i += character.length;
  }
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Character character = utf8_at(bytes, i);
    if (!character.valid) return {};
    i += character.length;
  }
  return bytes;
}

}  // namespace

std::string repair_mojibake(std::string line) {
  while (true) {
    auto read = read_again(line, to_latin_1);
    if (!read) read = read_again(line, to_windows_1252);
    if (!read || *read == line || !looks_wrong(line)) return line;
    line = *std::move(read);
  }
}

}  // namespace diptych

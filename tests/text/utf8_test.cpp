#include "lib/base/utf8.h"

#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "lib/base/error.h"

using namespace diptych;
using namespace std::string_literals;

TEST_CASE("every code point is written and read back") {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Character character = utf8_at(text, 0);
    const std::size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    const bool good = character.valid && character.code_point == c && text.size() == length &&
                      character.length == length;
    if (!good) FAIL("U+" << std::hex << static_cast<std::uint32_t>(c));
  }
}

// The expected texts are CPython's bytes.decode("utf-8", errors="replace").
TEST_CASE("each maximal invalid subpart becomes one U+FFFD") {
  const std::string r = "\uFFFD";
  CHECK(replace_invalid_utf8("") == "");
  CHECK(replace_invalid_utf8("a\u00E9\u4E2D\U0001F44D"s + '\0' + "b") ==
        "a\u00E9\u4E2D\U0001F44D"s + '\0' + "b");
  CHECK(replace_invalid_utf8("\x80\xBF") == r + r);
  CHECK(replace_invalid_utf8("\xE4\xB8") == r);             // cut short
  CHECK(replace_invalid_utf8("\xF0\x9F\x91") == r);         // cut short
  CHECK(replace_invalid_utf8("\xF0\x9F\x91z") == r + "z");  // cut short
  CHECK(replace_invalid_utf8("\xE4\xB8\xC3\xA9") == r + "\u00E9");
  CHECK(replace_invalid_utf8("\xC0\xAF") == r + r);                  // overlong
  CHECK(replace_invalid_utf8("\xE0\x80\xAF") == r + r + r);          // overlong
  CHECK(replace_invalid_utf8("\xF0\x8F\xBF\xBF") == r + r + r + r);  // overlong
  CHECK(replace_invalid_utf8("\xED\xA0\x80") == r + r + r);          // surrogate
  CHECK(replace_invalid_utf8("\xF4\x90\x80\x80") == r + r + r + r);  // above U+10FFFF
  CHECK(replace_invalid_utf8("\xF5\xFF") == r + r);
  CHECK(replace_invalid_utf8("\xF1\x80\x80\xE1\x80\xC2z") == r + r + r + "z");
}

TEST_CASE("the first byte that is not UTF-8 is named") {
  CHECK(check_utf8("") == 0);
  CHECK(check_utf8("z\u00E9") == 0xE9);
  CHECK(check_utf8("\U0010FFFFz") == 0x10FFFF);
  const auto offset_of = [](std::string_view text) {
    try {
      check_utf8(text);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const std::string begin = "text is not valid UTF-8: byte ";
  CHECK(offset_of("ab\xFFz") == begin + "0xFF at offset 2");
  CHECK(offset_of("\u4E2D\x80") == begin + "0x80 at offset 3");
  CHECK(offset_of("\xC0\xAF") == begin + "0xC0 at offset 0");
  CHECK(offset_of("a\xED\xB0\x80") == begin + "0xED at offset 1");
  CHECK(offset_of("a\xF4\x90\x80\x80") == begin + "0xF4 at offset 1");
  CHECK(offset_of("abc\xF0\x9F\x91") == begin + "0xF0 at offset 3");
}

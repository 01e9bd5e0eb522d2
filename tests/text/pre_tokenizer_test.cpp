#include "lib/text/pre_tokenizer.h"

#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "tests/text/support.h"

using namespace diptych;
using namespace std::string_literals;

namespace {

using Words = std::vector<std::string>;

Words words(std::string_view text) {
  Words found;
  while (!text.empty()) {
    const std::size_t length = first_word_length(text);
    REQUIRE(length > 0);
    REQUIRE(length <= text.size());
    found.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return found;
}

}  // namespace

// The expected words are regex.findall(PRETOKENIZE_REGEX, text), regex 2026.11.15.
TEST_CASE("contractions") {
  CHECK(words("it's") == Words{"it", "'s"});
  CHECK(words("I'LLrE") == Words{"I", "'LL", "rE"});
  CHECK(words("'re've'm'd't") == Words{"'re", "'ve", "'m", "'d", "'t"});
  CHECK(words("'\u017Fx") == Words{"'\u017F", "x"});  // a case variant of s
  CHECK(words("'lx'r'v") == Words{"'lx", "'r", "'v"});
  CHECK(words("'") == Words{"'"});
  CHECK(words(" 's") == Words{" '", "s"});
  CHECK(words("''s") == Words{"''", "s"});
  CHECK(words("x\u2019s") == Words{"x", "\u2019s"});
}

TEST_CASE("letters with one character before them") {
  CHECK(words("hello world") == Words{"hello", " world"});
  CHECK(words("a-b_c") == Words{"a", "-b", "_c"});
  CHECK(words("--b") == Words{"--", "b"});
  CHECK(words("\tx\u00A0y\u3000\u4E2D") == Words{"\tx", "\u00A0y", "\u3000\u4E2D"});
  CHECK(words("\rx\ny") == Words{"\r", "x", "\n", "y"});
  CHECK(words("e\u0323\u0301a") == Words{"e", "\u0323\u0301", "a"});  // marks are not letters
  CHECK(words("\U0001F44Dx") == Words{"\U0001F44Dx"});
}

TEST_CASE("numbers are single") {
  CHECK(words("12 3") == Words{"1", "2", " ", "3"});
  CHECK(words("\u00BD\u0663\u2167\u00B2") == Words{"\u00BD", "\u0663", "\u2167", "\u00B2"});
  CHECK(words("a1b") == Words{"a", "1", "b"});
}

TEST_CASE("other characters take a blank before and line breaks after") {
  CHECK(words(" !!\r\n\nx") == Words{" !!\r\n\n", "x"});
  CHECK(words("  !") == Words{" ", " !"});
  CHECK(words("\t!") == Words{"\t", "!"});
  CHECK(words("! \n!") == Words{"!", " \n", "!"});
  CHECK(words("\x1C\x1F\u200B") == Words{"\x1C\x1F\u200B"});  // not White_Space
}

TEST_CASE("whitespace") {
  CHECK(words("a   b") == Words{"a", "  ", " b"});
  CHECK(words("a   ") == Words{"a", "   "});
  CHECK(words("a  1") == Words{"a", " ", " ", "1"});
  CHECK(words(" \n \n  b") == Words{" \n \n", " ", " b"});
  CHECK(words(" \n\t\t") == Words{" \n", "\t\t"});
  CHECK(words("\u2028\u0085x") == Words{"\u2028", "\u0085x"});
  CHECK(words("\u2003\u2003!") == Words{"\u2003", "\u2003", "!"});
  CHECK(words("\v\f\r") == Words{"\v\f\r"});
}

TEST_CASE("every code point has the class the reference gives it") {
  const auto json =
      nlohmann::json::parse(read_file(kBagelGoldens / "cases/09_tokenizer/unicode_classes.json"));
  std::vector<CharacterClass> expected(0x110000, CharacterClass::other);
  const auto fill = [&](const char* key, CharacterClass kind) {
    for (const auto& range : json.at(key)) {
      for (std::size_t c = range.at(0); c <= range.at(1); ++c) expected[c] = kind;
    }
  };
  fill("L", CharacterClass::letter);
  fill("N", CharacterClass::number);
  fill("s", CharacterClass::whitespace);
  std::size_t different = 0, letters = 0;
  for (std::size_t c = 0; c < expected.size(); ++c) {
    const CharacterClass found = character_class(static_cast<char32_t>(c));
    different += found != expected[c] ? 1 : 0;
    letters += found == CharacterClass::letter ? 1 : 0;
  }
  CHECK(different == 0);
  CHECK(letters > 140000);
}

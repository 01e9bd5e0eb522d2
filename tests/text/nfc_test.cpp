#include "lib/text/nfc.h"

#include <chrono>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"

using namespace diptych;
using namespace std::string_literals;

TEST_CASE("text below U+0300 is in form C already") {
  std::string text;
  for (int c = 0; c < 0x80; ++c) text.push_back(static_cast<char>(c));
  text += "\u00C5\u00E9\u00FF\u0100\u017F\u01FA\u02AF\u02FF";
  CHECK(to_nfc(text) == text);
  CHECK(to_nfc("") == "");
}

TEST_CASE("text that would need utf8proc is refused without it") {
  const char* text = "ab\u4E2D";
  if (can_normalise(0x4E2D)) {
    CHECK(to_nfc(text) == text);
  } else {
    CHECK_THROWS_WITH_AS(to_nfc(text),
                         "text has U+4E2D at byte 2: this build has no utf8proc, so it takes only "
                         "code points below U+0300",
                         InputError);
  }
}

TEST_SUITE_BEGIN("needs utf8proc");

// Unicode 15 NormalizationTest.txt and UAX #15.
TEST_CASE("form C") {
  if (!can_normalise(0x300)) return test::skip(kNoUtf8proc);
  CHECK(to_nfc("e\u0301") == "\u00E9");
  CHECK(to_nfc("\u212B") == "\u00C5");              // singleton
  CHECK(to_nfc("\u1E0B\u0323") == "\u1E0D\u0307");  // reordered
  CHECK(to_nfc("q\u0307\u0323") == "q\u0323\u0307");
  CHECK(to_nfc("\u0958") == "\u0915\u093C");        // composition exclusion
  CHECK(to_nfc("\u1112\u1161\u11AB") == "\uD55C");  // Hangul
  CHECK(to_nfc("\uAC00\u11A8") == "\uAC01");
  CHECK(to_nfc("\uAC00\u11A7") == "\uAC00\u11A7");  // not a trailing consonant
  CHECK(to_nfc("\uAC01\u11A8") == "\uAC01\u11A8");
  CHECK(to_nfc("a\u0300\u0300") == "\u00E0\u0300");
  CHECK(to_nfc("\u0344") == "\u0308\u0301");
  CHECK(to_nfc("\u0B47\u0300\u0B3E") == "\u0B47\u0300\u0B3E");  // a mark between blocks
  CHECK(to_nfc("\U0001D15E") == "\U0001D157\U0001D165");
  CHECK(to_nfc(">\u0338") == "\u226F");
  // Kept: unassigned, noncharacters, ignorable ones, U+0000.
  const std::string kept = "\u0378\uFFFE\uFFFF\U0010FFFF\u200D\uFEFF\u00AD"s + '\0' + "\u034F";
  CHECK(to_nfc(kept) == kept);
}

TEST_CASE("a megabyte of marks takes no time") {
  if (!can_normalise(0x300)) return test::skip(kNoUtf8proc);
  std::string marks = "a";
  for (int i = 0; i < 250000; ++i) marks += "\u0301\u0323";
  const auto start = std::chrono::steady_clock::now();
  const std::string normal = to_nfc(marks);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(normal.starts_with("\u1EA1\u0323\u0323"));
  CHECK(normal.ends_with("\u0301\u0301"));
  CHECK(seconds.count() < 5);  // 0.05 s; a quadratic sort takes minutes
}

TEST_SUITE_END();

#include "lib/text/text_stream.h"

#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/utf8.h"
#include "lib/text/byte_level_bpe.h"
#include "tests/text/support.h"

using namespace diptych;

namespace {

using Ids = std::vector<std::int64_t>;

// One token a byte.
const Tokenizer& bytes() {
  static const std::unique_ptr<Tokenizer> tokenizer = byte_tokenizer();
  return *tokenizer;
}

std::vector<std::string> pieces_of(TextStream& stream, const Ids& ids) {
  std::vector<std::string> pieces;
  for (const std::int64_t id : ids) pieces.push_back(stream.add(Ids{id}));
  pieces.push_back(stream.finish());
  return pieces;
}

using Pieces = std::vector<std::string>;

}  // namespace

TEST_CASE("half a character is held back until it is whole") {
  TextStream stream(bytes(), {});
  CHECK(pieces_of(stream, bytes().encode("a\u00e9\U0001F98A!")) ==
        Pieces{"a", "", "\u00e9", "", "", "", "\U0001F98A", "!", ""});
  CHECK(stream.text() == "a\u00e9\U0001F98A!");
}

TEST_CASE("bytes that are no character become U+FFFD as soon as that is certain") {
  TextStream stream(bytes(), {});
  Ids ids = bytes().encode("\u00e9");
  ids.pop_back();  // half of it
  ids.push_back(bytes().encode("x").front());
  CHECK(pieces_of(stream, ids) == Pieces{"", "\uFFFDx", ""});
  TextStream cut(bytes(), {});
  ids.pop_back();
  CHECK(pieces_of(cut, ids) == Pieces{"", "\uFFFD"});
}

TEST_CASE("special tokens are left out, also between the bytes of a text") {
  TextStream stream(bytes(), {});
  Ids ids = bytes().encode("a<|im_end|>b<tool_call>");
  CHECK(pieces_of(stream, ids) == Pieces{"a", "", "b", "<tool_call>", ""});
}

TEST_CASE("a text ends in front of a stop string, of which no part is shown") {
  TextStream stream(bytes(), {"STOP", "\u00e9nd"});
  CHECK(stream.add(bytes().encode("go SSTO")) == "go S");
  CHECK(stream.add(bytes().encode("x S")) == "STOx ");
  CHECK_FALSE(stream.stopped());
  CHECK(stream.add(bytes().encode("TOPmore")).empty());
  CHECK(stream.stopped());
  CHECK(stream.add(bytes().encode("more")).empty());
  CHECK(stream.finish().empty());
  CHECK(stream.text() == "go SSTOx ");
  TextStream other(bytes(), {"STOP", "\u00e9nd"});
  CHECK(other.add(bytes().encode("a\u00e9n")) == "a");
  CHECK(other.finish() == "\u00e9n");
}

TEST_CASE("the earliest of several stop strings counts") {
  TextStream stream(bytes(), {"cd", "bcx", "b"});
  CHECK(stream.add(bytes().encode("abcdef")) == "a");
  CHECK(stream.stopped());
}

TEST_CASE("whatever the tokens are and however they come, the text is that of all together") {
  std::mt19937 random(7);
  std::uniform_int_distribution<std::int64_t> byte(0, 255), count(1, 5);
  for (int round = 0; round < 200; ++round) {
    Ids ids(40);
    for (std::int64_t& id : ids) id = byte(random);
    if (round % 4 == 0) ids[7] = *bytes().token_id("<|im_end|>");
    TextStream stream(bytes(), {});
    std::string text;
    for (std::size_t at = 0; at < ids.size();) {
      const auto end = std::min(ids.size(), at + static_cast<std::size_t>(count(random)));
      const std::string piece = stream.add(std::span(ids).subspan(at, end - at));
      CHECK(check_utf8(piece) <= 0x10FFFF);  // throws for half a character
      text += piece;
      at = end;
    }
    text += stream.finish();
    std::erase_if(ids, [](std::int64_t id) { return bytes().is_special(id); });
    CHECK(text == bytes().decode(ids));
    CHECK(stream.text() == text);
  }
}

#include "lib/text/byte_level_bpe.h"

#include <chrono>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "lib/base/error.h"
#include "lib/text/byte_alphabet.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"

using namespace diptych;
using namespace std::string_literals;

namespace {

using Ids = std::vector<std::int64_t>;

// Bytes at 0..255, then pieces and merges of "ab", "aba" and " ab", then added tokens.
BpeTables small_tables() {
  BpeTables tables;
  tables.pieces_place = "vocab.json";
  tables.added_place = "tokenizer_config.json";
  for (std::int64_t id = 0; id < 256; ++id) {
    tables.pieces.push_back({alphabet_text(alphabet_order()[static_cast<std::size_t>(id)]), id});
  }
  tables.pieces.push_back({"ab", 256});
  tables.pieces.push_back({"aba", 257});
  tables.pieces.push_back({"\u0120ab", 258});
  tables.merges_before = "merges.txt:";
  tables.merges.push_back({"a", "b", 2});
  tables.merges.push_back({"ab", "a", 3});
  tables.merges.push_back({"\u0120", "ab", 4});
  tables.added = {{"<s>", 300}, {"<s>>", 301}, {"<<s", 302}, {"a b", 303}, {"\u4E2D", 304}};
  return tables;
}

constexpr std::int64_t kA = 'a' - '!', kB = 'b' - '!', kBlank = 220, kLess = '<' - '!';

std::string error_of(const BpeTables& tables) {
  try {
    make_byte_level_bpe(tables);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("the byte alphabet") {
  CHECK(alphabet_order()[0] == '!');
  CHECK(alphabet_order()[187] == 0xFF);
  CHECK(alphabet_order()[188] == 0x00);
  CHECK(alphabet_order()[255] == 0xAD);
  CHECK(alphabet_text(' ') == "\u0120");
  CHECK(alphabet_text('\n') == "\u010A");
  CHECK(alphabet_text(0xAD) == "\u0143");
  CHECK(alphabet_text(0xE9) == "\u00E9");
  CHECK(alphabet_bytes("\u0120a\u00E4\u00BD\u0142") == " a\xE4\xBD\xA0"s);
  CHECK_FALSE(alphabet_bytes("a b").has_value());
  CHECK_FALSE(alphabet_bytes("\u0144").has_value());
  CHECK_FALSE(alphabet_bytes("\u00AD").has_value());
}

TEST_CASE("words are merged, each for itself") {
  const auto tokenizer = make_byte_level_bpe(small_tables());
  CHECK(tokenizer->encode("") == Ids{});
  CHECK(tokenizer->encode("abab") == Ids{256, 256});
  CHECK(tokenizer->encode("abaaba") == Ids{257, 257});
  CHECK(tokenizer->encode("ab ab") == Ids{256, 258});
  CHECK(tokenizer->encode(" aab") == Ids{kBlank, kA, 256});
  CHECK(tokenizer->encode("\0"s) == Ids{188});
  CHECK(tokenizer->size() == 305);
  CHECK(tokenizer->token_id("aba") == 257);
  CHECK(tokenizer->token_id("a b") == 303);
  CHECK(tokenizer->token_id(" ab") == std::nullopt);
}

TEST_CASE("added tokens are found first, the leftmost and then the longest") {
  const auto tokenizer = make_byte_level_bpe(small_tables());
  CHECK(tokenizer->encode("<s><s>>") == Ids{300, 301});
  CHECK(tokenizer->encode("<<s>") == Ids{302, '>' - '!'});
  CHECK(tokenizer->encode("<<<s>") == Ids{kLess, 302, '>' - '!'});
  CHECK(tokenizer->encode("aba bab") == Ids{256, 303, 256});
  CHECK(tokenizer->encode("ab <s> ab") == Ids{256, kBlank, 300, 258});
  CHECK(tokenizer->encode("<S>").size() == 3);
}

TEST_CASE("form C comes before added tokens" * doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(0x338)) return test::skip(kNoUtf8proc);
  const auto tokenizer = make_byte_level_bpe(small_tables());
  CHECK(tokenizer->encode("<s>\u0338").front() == kLess);  // > and U+0338 compose
  CHECK(tokenizer->encode("\u4E2D") == Ids{304});
  CHECK(tokenizer->encode("e\u0301") == tokenizer->encode("\u00E9"));
}

TEST_CASE("invalid UTF-8 is refused") {
  const auto tokenizer = make_byte_level_bpe(small_tables());
  CHECK_THROWS_WITH_AS(tokenizer->encode("ab\xC3"),
                       "text is not valid UTF-8: byte 0xC3 at offset 2", InputError);
  CHECK_THROWS_AS(tokenizer->encode("<s>\xED\xA0\x80"), InputError);
}

TEST_CASE("decode joins bytes between added tokens") {
  const auto tokenizer = byte_tokenizer();
  const auto id = [&](std::uint8_t byte) { return *tokenizer->token_id(alphabet_text(byte)); };
  const std::int64_t end = 151645;
  CHECK(tokenizer->decode(Ids{}) == "");
  CHECK(tokenizer->decode(Ids{id(0xC3), id(0xA9)}) == "\u00E9");
  CHECK(tokenizer->decode(Ids{id(0xC3), end, id(0xA9)}) == "\uFFFD<|im_end|>\uFFFD");
  CHECK(tokenizer->decode(Ids{id(0xE4), id(0xBD), id(0x00)}) == "\uFFFD\0"s);
  CHECK_THROWS_WITH_AS(tokenizer->decode(Ids{id('a'), 151665}),
                       "token id 151665 has no text in the byte tokenizer", InputError);
  CHECK_THROWS_AS(tokenizer->decode(Ids{-1}), InputError);
}

TEST_CASE("the byte tokenizer has Qwen2.5's added tokens") {
  const auto tokenizer = byte_tokenizer();
  CHECK(tokenizer->size() == 151665);
  CHECK(tokenizer->token_id("<|endoftext|>") == 151643);
  CHECK(tokenizer->token_id("<|im_start|>") == 151644);
  CHECK(tokenizer->token_id("<|im_end|>") == 151645);
  CHECK(tokenizer->token_id("<|vision_start|>") == 151652);
  CHECK(tokenizer->token_id("<|vision_end|>") == 151653);
  CHECK(tokenizer->token_id("<|file_sep|>") == 151664);
  CHECK(tokenizer->encode("!~<|im_end|>") == Ids{0, 93, 151645});
  CHECK(tokenizer->encode("a\n\u00E9") == Ids{kA, 198, 127, 102});
}

TEST_CASE("tables that do not fit together are refused") {
  CHECK(error_of(small_tables()) == "accepted");
  BpeTables tables = small_tables();

  tables.merges.push_back({"a", "c", 5});
  CHECK(error_of(tables) == R"(merges.txt:5: merge of "a" and "c": "ac" is not in vocab.json)");
  tables.merges.back() = {"aa", "b", 5};
  CHECK(error_of(tables) == R"(merges.txt:5: merge of "aa" and "b": "aa" is not in vocab.json)");
  tables.merges.back() = {"", "b", 5};
  CHECK(error_of(tables) == "merges.txt:5: a piece of the merge is empty");

  tables = small_tables();
  tables.pieces.push_back({"ba", 256});
  CHECK(error_of(tables) == R"(vocab.json: id 256 is given to two pieces, one of them "ba")");
  tables.pieces.back() = {"b a", 259};
  CHECK(error_of(tables) ==
        R"(vocab.json: piece "b a" has a character that is not in the byte alphabet)");
  tables.pieces.back() = {"a b", 303};  // the added token, listed again
  CHECK(error_of(tables) == "accepted");

  tables = small_tables();
  tables.pieces.erase(tables.pieces.begin() + kBlank);
  CHECK(error_of(tables) ==
        "vocab.json: no piece \"\u0120\", which stands for byte 0x20; expected all 256");

  tables = small_tables();
  tables.added.push_back({"<x>", 300});
  CHECK(error_of(tables) ==
        R"(tokenizer_config.json: "<x>" has id 300, which another token has too)");
  tables.added.back() = {"<x>", 256};
  CHECK(error_of(tables) ==
        R"(tokenizer_config.json: "<x>" has id 256, which another token has too)");
  tables.added.back() = {"<s>", 305};
  CHECK(error_of(tables) == R"(tokenizer_config.json: "<s>" has id 305, but id 300 elsewhere)");
  tables.added.back() = {"ab", 305};
  CHECK(error_of(tables) == R"(tokenizer_config.json: "ab" has id 305, but id 256 elsewhere)");
  tables.added.back() = {"", 305};
  CHECK(error_of(tables) == "tokenizer_config.json: token 305 has no text");
  tables.added.back() = {"\u0120ab", 258};
  CHECK(error_of(tables) ==
        "tokenizer_config.json: \"\u0120ab\" is a piece in vocab.json that stands for other text");
}

TEST_CASE("a megabyte of anything takes no time") {
  const auto tokenizer = load_byte_level_bpe(kBagelGoldens / "checkpoint");
  for (const std::string& unit : {"t"s, "e"s, " "s, "\n"s, "!"s, "7"s, " the"s, "<|im_end|>"s, "<"s,
                                  "'s"s, "\u00E9"s, "\r "s}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = tokenizer->encode(text);
    const std::string decoded = tokenizer->decode(ids);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    INFO(unit);
    CHECK(decoded == text);
    CHECK(seconds.count() < 10);  // at most 0.5 s; a quadratic one takes hours
  }
}

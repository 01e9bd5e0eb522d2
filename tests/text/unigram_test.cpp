// Ids recorded from T5TokenizerFast (transformers 4.57.6, tokenizers 0.22.2).
#include "lib/text/unigram.h"

#include <chrono>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/text/charsmap.h"
#include "lib/text/graphemes.h"
#include "lib/text/nfc.h"
#include "tests/support/folder.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"
#include "tests/text/t5_goldens.h"
#include "tests/verify/goldens.h"

using namespace diptych;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

using Ids = std::vector<std::int64_t>;

UnigramTokenizer tokenizer_of(const Json& json) {
  return UnigramTokenizer(parse_unigram_file({"t", json.dump()}));
}

// Rows of texts that any build can take, or the others.
std::size_t check_rows(const UnigramTokenizer& tokenizer, const Json& rows, bool plain) {
  std::size_t checked = 0;
  for (const Json& row : rows) {
    const std::string text = row.at("text");
    if ((check_utf8(text) < kFirstNormalised) != plain) continue;
    INFO(text);
    CHECK(tokenizer.encode(text) == row.at("ids").get<Ids>());
    ++checked;
  }
  return checked;
}

void check_recorded(const std::string& family, bool plain, std::size_t expected) {
  const auto rows = Json::parse(read_file(kT5Goldens / family / "tokenizer_rows.json"));
  CHECK(check_rows(tokenizer_of(golden_t5_json(family)), rows, plain) == expected);
}

// A vocabulary of one's own: its pieces from id 3 on, with scores -1, -2, ...
Json small_json(const std::vector<std::string>& pieces) {
  Json vocab = Json::array();
  for (const char* special : {"<pad>", "</s>", "<unk>"})
    vocab.push_back(Json::array({special, 0.0}));
  for (std::size_t i = 0; i < pieces.size(); ++i)
    vocab.push_back(Json::array({pieces[i], -1.0 - static_cast<double>(i)}));
  return {{"model", {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", vocab}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}}}};
}

std::string error_of(const Json& json) {
  return test::message_of([&] { tokenizer_of(json); });
}

std::string error_with(Json json, const char* pointer, const Json& value) {
  json[Json::json_pointer(pointer)] = value;
  return error_of(json);
}

}  // namespace

TEST_CASE("Wan's texts become the recorded ids") {
  check_recorded("wan", true, 119);
}

TEST_CASE("Cosmos's texts become the recorded ids") {
  check_recorded("cosmos", true, 119);
}

TEST_CASE("texts beyond Latin-1 become the recorded ids" * doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  check_recorded("wan", false, 105);
  check_recorded("cosmos", false, 105);
}

TEST_CASE("files as they were released, where the full recordings are" *
          doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  const std::pair<const char*, const char*> kFamilies[] = {{"wan", "checkpoint"},
                                                           {"cosmos", "checkpoint_t2i"}};
  for (const auto& [family, checkpoint] : kFamilies) {
    for (const fs::path& goldens : test::goldens_of(family)) {
      if (!fs::is_directory(goldens / "cases/tokenizer")) continue;
      const auto tokenizer = UnigramTokenizer::load(goldens / checkpoint / "tokenizer");
      const auto rows = Json::parse(read_file(goldens / "cases/tokenizer/rows.json"));
      CHECK(check_rows(tokenizer, rows, true) + check_rows(tokenizer, rows, false) == 224);
    }
  }
}

TEST_CASE("the ids are cut to a length, and </s> stays") {
  const UnigramTokenizer tokenizer = tokenizer_of(golden_t5_json("wan"));
  CHECK(tokenizer.size() == 668);
  std::string text;
  for (int i = 0; i < 400; ++i) text += "A small cat. ";
  const Ids all = tokenizer.encode(text), cut = tokenizer.truncate(all, 512);
  REQUIRE(all.size() > 512);
  REQUIRE(cut.size() == 512);
  CHECK(std::equal(cut.begin(), cut.end() - 1, all.begin()));
  CHECK(cut.back() == 1);
  CHECK(tokenizer.truncate(all, all.size()) == all);
  CHECK(tokenizer.truncate(all, 1) == Ids{1});
  CHECK(tokenizer.truncate({1}, 512) == Ids{1});
}

TEST_CASE("pieces are chosen by the sum of their scores, of equal ones the first found") {
  const std::string mark = "\u2581";
  const auto tokenizer = tokenizer_of(small_json({mark, "a", "b", "ab", mark + "ab", "abab"}));
  // Scores -1 .. -6: "_ab" is -5, as "_" + "ab" = -1 - 4 is; both ways end with one piece of two
  // bytes or more, and the way from further left is found first.
  CHECK(tokenizer.encode("ab") == Ids{7});
  CHECK(tokenizer.encode("b") == Ids{3, 5});
  CHECK(tokenizer.encode("abab ab") == Ids{3, 8, 7});
  // Without a post_processor nothing stands around the text.
  CHECK(tokenizer.encode("") == Ids{});
  CHECK(tokenizer.encode(" ") == Ids{3});
  CHECK(tokenizer.encode("  ab") == Ids{3, 7});
}

TEST_CASE("a run of unknown characters in a word is one unknown token") {
  const std::string mark = "\u2581";
  const auto tokenizer = tokenizer_of(small_json({mark, "a"}));
  CHECK(tokenizer.encode("axyz\u4E2Da") == Ids{3, 4, 2, 4});
  CHECK(tokenizer.encode("xy z") == Ids{3, 2, 3, 2});
  CHECK(tokenizer.encode("x<unk>x") == Ids{3, 2});  // in the vocabulary alone
}

TEST_CASE("the mark stands before the first word always, first or never") {
  const std::string mark = "\u2581";
  Json json = small_json({mark, "a", mark + "a", "<x>"});
  json["added_tokens"] = {{{"id", 6}, {"content", "<x>"}, {"normalized", false}}};
  const auto encode = [&](const char* text) { return tokenizer_of(json).encode(text); };
  CHECK(encode("a<x>a a") == Ids{5, 6, 5, 5});
  json["pre_tokenizer"]["prepend_scheme"] = "first";
  CHECK(encode("a<x>a a") == Ids{5, 6, 4, 5});
  CHECK(encode("<x>a") == Ids{6, 4});
  json["pre_tokenizer"]["prepend_scheme"] = "never";
  CHECK(encode("a<x>a a") == Ids{4, 6, 4, 5});
  json["pre_tokenizer"].erase("prepend_scheme");
  json["pre_tokenizer"]["add_prefix_space"] = false;
  CHECK(encode("a a") == Ids{4, 5});
  json["pre_tokenizer"]["split"] = false;
  CHECK(encode("xa xa") == Ids{2, 4, 3, 2, 4});
}

TEST_CASE("normalizer steps") {
  const std::string mark = "\u2581";
  Json json = small_json({mark, "a", "b"});
  json["pre_tokenizer"] = nullptr;
  const auto encode = [&](const Json& step, const char* text) {
    json["normalizer"] = step;
    return tokenizer_of(json).encode(text);
  };
  const Json runs = {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", mark}};
  CHECK(encode(runs, "a  b   a b  ") == Ids{4, 3, 5, 3, 4, 2, 5, 3});
  const Json plain = {{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "b"}};
  CHECK(encode(plain, "aab.ab") == Ids{4, 5, 2, 5});
  CHECK(encode({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}}, "\n a ") ==
        Ids{4, 2});
  CHECK(encode({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}, " a\u3000 ") ==
        Ids{2, 4});
  json["added_tokens"] = {{{"id", 9}, {"content", "ab"}, {"normalized", true}}};
  CHECK(encode(plain, "ba") == Ids{9, 4});  // the token is looked for as "b"
}

TEST_CASE("what a tokenizer.json asks for and is not there is refused by name") {
  const Json good = golden_t5_json("wan");
  CHECK(error_of(good) == "no error");
  CHECK(error_with(good, "/normalizer/type", "NFKC") ==
        R"(t: normalizer.type: found "NFKC", expected "Precompiled" or "Strip" or "Replace" (a T5 )"
        "tokenizer)");
  CHECK(error_with(good, "/normalizer/normalizers/1/type", "Lowercase")
            .starts_with(R"(t: normalizer.normalizers[1].type: found "Lowercase")"));
  CHECK(error_with(good, "/normalizer/normalizers/2/pattern/Regex", "a+")
            .starts_with(R"(t: normalizer.normalizers[2].pattern.Regex: found "a+")"));
  CHECK(error_with(good, "/pre_tokenizer/type", "ByteLevel") ==
        R"(t: pre_tokenizer.type: found "ByteLevel", expected "Metaspace" or "WhitespaceSplit" (a )"
        "T5 tokenizer)");
  CHECK(error_with(good, "/pre_tokenizer/prepend_scheme", "last")
            .starts_with(R"(t: pre_tokenizer.prepend_scheme: found "last")"));
  CHECK(error_with(good, "/pre_tokenizer/replacement", "ab") ==
        R"(t: pre_tokenizer.replacement: found "ab", expected one character)");
  CHECK(error_with(good, "/post_processor/type", "BertProcessing")
            .starts_with(R"(t: post_processor.type: found "BertProcessing")"));
  CHECK(error_with(good, "/model/type", "BPE") ==
        R"(t: model.type: found "BPE", expected "Unigram" (a T5 tokenizer))");
  CHECK(error_with(good, "/model/byte_fallback", true) ==
        "t: model.byte_fallback: found true, expected false (a T5 tokenizer)");
  CHECK(error_with(good, "/added_tokens/1/lstrip", true) ==
        "t: added_tokens[1].lstrip: found true, expected false (a T5 tokenizer)");
}

TEST_CASE("a broken tokenizer.json") {
  const Json good = golden_t5_json("wan");
  CHECK(error_of(Json::array()) == "t: expected an object, found array");
  CHECK(error_with(good, "/model", 3) == "t: model: expected an object, found number");
  CHECK(error_with(good, "/model/vocab", Json::object()) ==
        "t: model.vocab: expected an array, found object");
  CHECK(error_with(good, "/model/vocab/5", "x") ==
        "t: model.vocab[0]: expected a text and its score, found string");
  CHECK(error_with(good, "/model/vocab/5", {"x"}) ==
        "t: model.vocab[5]: expected a text and its score");
  CHECK(error_with(good, "/model/vocab/5", {1, 2}) ==
        "t: model.vocab[5]: expected a text and its score");
  CHECK(error_with(good, "/model/unk_id", 668) ==
        "t: model.unk_id: found 668, expected one of the 668 pieces");
  CHECK(error_with(good, "/model/unk_id", nullptr)
            .starts_with("t: model.unk_id: found null, expected a token id"));
  CHECK(error_with(good, "/normalizer", 1) == "t: normalizer: expected an object, found number");
  CHECK(error_with(good, "/normalizer/normalizers", "x") ==
        "t: normalizer.normalizers: expected an array, found string");
  CHECK(error_with(good, "/pre_tokenizer/split", "x") ==
        "t: pre_tokenizer.split: expected true or false, found string");
  CHECK(error_with(good, "/post_processor/single", Json::array()) ==
        "t: post_processor.single: expected a Sequence and the tokens around it, found array");
  CHECK(error_with(good, "/post_processor/special_tokens", Json::object()) ==
        "t: post_processor.special_tokens.</s>: expected an object, found nothing");
  CHECK(error_with(good, "/added_tokens/0/content", "") ==
        "t: added_tokens[0].content: is empty, expected a text");
  const std::string place = "t: normalizer.normalizers[0].precompiled_charsmap: ";
  const char* const at = "/normalizer/normalizers/0/precompiled_charsmap";
  CHECK(error_with(good, at, "AAA$") == place + "is not base64");
  CHECK(error_with(good, at, "") ==
        place + "its trie has 0 bytes of the 0 that follow; expected a charsmap");
  CHECK(error_with(good, at, to_base64(std::string("\x08\0\0\0abcd", 8))) ==
        place + "its trie has 8 bytes of the 4 that follow; expected a charsmap");
  CHECK(error_with(good, at, to_base64(std::string("\x04\0\0\0abcd\xFF", 9))).starts_with(place));

  const test::Folder folder;
  CHECK(test::message_of([&] {
          UnigramTokenizer::load(folder.path());
        }).starts_with((folder / "tokenizer.json").string()));
  folder.write("tokenizer.json", good.dump().substr(0, 300000));
  CHECK(test::message_of([&] {
          UnigramTokenizer::load(folder.path());
        }).ends_with("ends within its JSON: truncated?"));
  CHECK(test::message_of([&] { tokenizer_of(good).encode("ab\xFF"); }) != "no error");
}

// The words of a double array that lead anywhere, and offsets beyond the texts.
TEST_CASE("a charsmap with wrong numbers leads to no other memory") {
  std::string bytes = read_file(kT5Goldens / "nmt_nfkc.charsmap");
  std::uint32_t random = 1;
  for (int round = 0; round < 40; ++round) {
    std::string broken = bytes.substr(0, bytes.size() - (round % 2 == 0 ? 0u : 20000u));
    for (std::size_t i = 4; i < broken.size() / 2; ++i) {
      random = random * 1664525 + 1013904223;
      if (random >> 24 < 64) broken[i] = static_cast<char>(random >> 16);
    }
    try {
      const Charsmap map = Charsmap::parse(to_base64(broken), "t");
      std::string text;
      for (char32_t c = 1; c < kFirstNormalised; ++c) append_utf8(text, c);
      check_utf8(map.apply(text));
    } catch (const InputError&) {
    }
  }
}

TEST_CASE("marks behind a short cluster vanish, behind a long one they stay" *
          doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  const Charsmap map = Charsmap::parse(golden_charsmap(), "t");
  CHECK(map.apply("\uFF21\u0301") == "A");
  CHECK(map.apply("\u00BD\u0301") == "1\u20442");
  CHECK(map.apply("\uFF21\u20E3") == "A\u20E3");
  CHECK(map.apply("e\u0301 \u200B\t\n") == "\u00E9    ");
  CHECK(first_cluster_length("\r\nx") == 2);
  CHECK(first_cluster_length("e\u0301\u0302x") == 5);
  CHECK(first_cluster_length("\U0001F469\u200D\U0001F469x") == 11);
  CHECK(first_cluster_length("\U0001F1E9\U0001F1EA\U0001F1E9\U0001F1EA") == 8);
}

TEST_CASE("a real vocabulary's size is read, and a long text encoded, in good time") {
  const std::string mark = "\u2581";
  std::vector<std::string> pieces = {mark};
  for (int i = 0; i < 256000; ++i)
    pieces.push_back(fmt::format("{}w{:x}", mark, i * 7919 % 999983));
  const std::string text = small_json(pieces).dump();
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto start = Clock::now();
  const UnigramTokenizer tokenizer(parse_unigram_file({"t", text}));
  MESSAGE("read in ", seconds_since(start), " s");
  CHECK(tokenizer.size() == 256004);
  std::string words;
  for (int i = 0; i < 100000; ++i) words += fmt::format("w{:x} ", i * 31);
  const auto encoding = Clock::now();
  const Ids ids = tokenizer.encode(words + std::string(100000, 'z'));
  MESSAGE("encoded in ", seconds_since(encoding), " s");
  CHECK(ids.size() > 100000);
  CHECK(seconds_since(start) < 20);  // quadratic would take minutes
}

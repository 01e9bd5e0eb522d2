#include "lib/text/bpe_files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/text/byte_level_bpe.h"
#include "tests/support/folder.h"
#include "tests/text/support.h"

using namespace diptych;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const char* const kConfig = R"({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder":
  {"3": {"content": "<s>", "lstrip": false, "special": true}}})";

std::string slow_error(const std::string& vocab, const std::string& merges,
                       const std::string& config) {
  try {
    parse_slow_files({"v", vocab}, {"m", merges}, {"c", config});
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string fast_error(const Json& json) {
  try {
    parse_fast_file({"t", json.dump()});
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

Json golden_fast_file() {
  return Json::parse(read_file(kBagelGoldens / "checkpoint/tokenizer.json"));
}

std::string load_error(const fs::path& folder) {
  try {
    load_byte_level_bpe(folder);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("vocab.json, merges.txt and tokenizer_config.json are read") {
  const NamedText merges{"m", "#version: 0.2\r\na b\r\n\nab a  \t\nb a"};
  const BpeTables tables =
      parse_slow_files({"v", R"({"b": 0, "a": 1, "ab": 2})"}, merges, {"c", kConfig});
  REQUIRE(tables.pieces.size() == 3);
  CHECK(tables.pieces[1].text == "a");
  CHECK(tables.pieces[1].id == 1);
  REQUIRE(tables.merges.size() == 3);
  CHECK(tables.merges[1].left == "ab");
  CHECK(tables.merges[1].right == "a");
  CHECK(tables.place_of(tables.merges[1]) == "m:4");
  CHECK(tables.merges[2].right == "a");
  REQUIRE(tables.added.size() == 1);
  CHECK(tables.added[0].text == "<s>");
  CHECK(tables.added[0].id == 3);
}

TEST_CASE("broken vocab.json") {
  CHECK(slow_error("{}", "", kConfig) == "accepted");
  CHECK(slow_error("", "", kConfig) == "v: is empty, expected JSON");
  CHECK(slow_error("{\"a\": 1", "", kConfig) == "v:1:8: ends within its JSON: truncated?");
  CHECK(slow_error("{\"\xFF\": 1}", "", kConfig) == "v:1:3: is not valid JSON");
  CHECK(slow_error("[1]", "", kConfig) == "v: expected an object, found array");
  CHECK(slow_error(R"({"a": "1"})", "", kConfig) ==
        R"(v: "a" has "1", expected a token id in 0..2147483647)");
  CHECK(slow_error(R"({"a\n": -1})", "", kConfig) ==
        R"(v: "a\n" has -1, expected a token id in 0..2147483647)");
  CHECK(slow_error(R"({"a": 2147483648})", "", kConfig) ==
        R"(v: "a" has 2147483648, expected a token id in 0..2147483647)");
  CHECK(slow_error(R"({"a": 1.0})", "", kConfig) ==
        R"(v: "a" has 1.0, expected a token id in 0..2147483647)");
  CHECK(slow_error(R"({"a": [[1]]})", "", kConfig) ==
        R"(v: "a" has array, expected a token id in 0..2147483647)");
  CHECK(slow_error(R"({"a": 1e400})", "", kConfig) == "v: has a number that is out of range");
  const std::string deep(200000, '[');
  CHECK(slow_error(deep, "", kConfig) == "v:1:200001: ends within its JSON: truncated?");
  CHECK(slow_error("{\"a\":" + deep + std::string(200000, ']') + "}", "", kConfig) ==
        R"(v: "a" has array, expected a token id in 0..2147483647)");
}

TEST_CASE("broken merges.txt") {
  CHECK(slow_error("{}", "a b\n\nc d\n", kConfig) == "accepted");
  CHECK(slow_error("{}", "a b\nab\n", kConfig) == R"(m:2: found "ab", expected two pieces)");
  CHECK(slow_error("{}", "a b c", kConfig) == R"(m:1: found "a b c", expected two pieces)");
  CHECK(slow_error("{}", "a  b", kConfig) == R"(m:1: found "a  b", expected two pieces)");
  CHECK(slow_error("{}", "\n b", kConfig) == R"(m:2: found " b", expected two pieces)");
  CHECK(slow_error("{}", "a b\n#version", kConfig) ==
        R"(m:2: found "#version", expected two pieces)");
}

TEST_CASE("broken tokenizer_config.json") {
  CHECK(slow_error("{}", "", "null") == "c: expected an object, found null");
  CHECK(slow_error("{}", "", "{}") == "c: added_tokens_decoder: expected an object, found nothing");
  CHECK(slow_error("{}", "", R"({"added_tokens_decoder": {"3": {}}})") ==
        R"(c: added_tokens_decoder["3"].content: expected a string, found nothing)");
  CHECK(slow_error("{}", "", R"({"added_tokens_decoder": {"3": "<s>"}})") ==
        R"(c: added_tokens_decoder["3"]: expected an object, found string)");
  for (const char* key : {"x", "", "-1", "3x", "2147483648", "99999999999999999999"}) {
    const Json config = {{"added_tokens_decoder", {{key, {{"content", "<s>"}}}}}};
    CHECK(slow_error("{}", "", config.dump()) ==
          fmt::format("c: added_tokens_decoder: found key {:?}, expected a token id", key));
  }
  CHECK(slow_error("{}", "",
                   R"({"added_tokens_decoder": {"3": {"content": "a", "lstrip": true}}})") ==
        R"(c: added_tokens_decoder["3"].lstrip: found true, expected false (a Qwen2 tokenizer))");
  CHECK(
      slow_error("{}", "", R"({"added_tokens_decoder": {}, "tokenizer_class": "GPT2Tokenizer"})") ==
      R"(c: tokenizer_class: found "GPT2Tokenizer", expected "Qwen2Tokenizer" or )"
      R"("Qwen2TokenizerFast" (a Qwen2 tokenizer))");
}

TEST_CASE("tokenizer.json: merges as strings and as pairs") {
  Json json = golden_fast_file();
  const BpeTables strings = parse_fast_file({"t", json.dump()});
  for (Json& merge : json["model"]["merges"]) {
    const std::string text = merge;
    const std::size_t space = text.find(' ');
    merge = Json::array({text.substr(0, space), text.substr(space + 1)});
  }
  const BpeTables pairs = parse_fast_file({"t", json.dump()});
  REQUIRE(strings.merges.size() == 344);
  REQUIRE(pairs.merges.size() == 344);
  for (std::size_t i = 0; i < pairs.merges.size(); ++i) {
    CHECK(strings.merges[i].left == pairs.merges[i].left);
    CHECK(strings.merges[i].right == pairs.merges[i].right);
  }
  CHECK(pairs.merges[2].left == "\u0120");
  CHECK(pairs.merges[2].right == "th");
}

TEST_CASE("broken tokenizer.json") {
  const Json good = golden_fast_file();
  CHECK(fast_error(good) == "accepted");
  CHECK(fast_error(Json::array()) == "t: expected an object, found array");
  const auto with = [&](const char* pointer, const Json& value) {
    Json json = good;
    json[Json::json_pointer(pointer)] = value;
    return fast_error(json);
  };
  CHECK(with("/normalizer", nullptr) == "t: normalizer: expected an object, found null");
  CHECK(with("/normalizer/type", "NFKC") ==
        R"(t: normalizer.type: found "NFKC", expected "NFC" (a Qwen2 tokenizer))");
  CHECK(with("/pre_tokenizer/pretokenizers", Json::array()) ==
        "t: pre_tokenizer.pretokenizers: expected two steps, Split and ByteLevel, found array");
  CHECK(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\s+")
            .starts_with(R"(t: pre_tokenizer.pretokenizers[0].pattern.Regex: found "\\s+")"));
  CHECK(with("/pre_tokenizer/pretokenizers/1/add_prefix_space", true) ==
        "t: pre_tokenizer.pretokenizers[1].add_prefix_space: found true, expected false (a Qwen2 "
        "tokenizer)");
  CHECK(with("/model/type", "Unigram") ==
        R"(t: model.type: found "Unigram", expected "BPE" (a Qwen2 tokenizer))");
  CHECK(with("/model/byte_fallback", true) ==
        "t: model.byte_fallback: found true, expected false (a Qwen2 tokenizer)");
  CHECK(with("/model/vocab", 3) == "t: model.vocab: expected an object, found number");
  CHECK(with("/model/vocab/z", -3) ==
        R"(t: model.vocab: "z" has -3, expected a token id in 0..2147483647)");
  CHECK(with("/model/merges", "a b") == "t: model.merges: expected an array, found string");
  CHECK(with("/model/merges/7", "ab") == R"(t: model.merges[7]: found "ab", expected two pieces)");
  CHECK(with("/model/merges/7", Json::array({"a"})) ==
        "t: model.merges[7]: expected two pieces, found array");
  CHECK(with("/model/merges/7", Json::array({"a", 1})) ==
        "t: model.merges[7]: expected a string, found number");
  CHECK(with("/added_tokens", nullptr) == "t: added_tokens: expected an array, found null");
  CHECK(with("/added_tokens/1/id", "601") ==
        R"(t: added_tokens[1].id: found "601", expected a token id in 0..2147483647)");
  CHECK(with("/added_tokens/1/content", 5) ==
        "t: added_tokens[1].content: expected a string, found number");
  CHECK(with("/added_tokens/1/single_word", true) ==
        "t: added_tokens[1].single_word: found true, expected false (a Qwen2 tokenizer)");
}

TEST_CASE("missing files") {
  const test::Folder folder;
  const std::string path = folder.path().string();
  const std::string no_other = " not found, nor tokenizer.json; expected a tokenizer";
  const std::string none = ": vocab.json, merges.txt, tokenizer_config.json" + no_other;
  CHECK(load_error(folder.path()) == path + none);
  CHECK(load_error(folder.path() / "no") == path + "/no" + none);
  folder.write("vocab.json", read_file(kBagelGoldens / "checkpoint/vocab.json"));
  CHECK(load_error(folder.path()) == path + ": merges.txt, tokenizer_config.json" + no_other);
  folder.write("merges.txt", "#version: 0.2\nt h\nt \u4E2D\n");
  CHECK(load_error(folder.path()) == path + ": tokenizer_config.json" + no_other);
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder": {}})");
  CHECK(load_error(folder.path()) ==
        path + "/merges.txt:3: merge of \"t\" and \"\u4E2D\": \"\u4E2D\" is not in " + path +
            "/vocab.json");
  for (const char* empty : {"", "#version: 0.2\n\n"}) {
    folder.write("merges.txt", empty);
    CHECK(load_error(folder.path()) == path + "/merges.txt: holds no merges: truncated?");
  }
  folder.write("merges.txt", "t h\n");
  CHECK(load_error(folder.path()) ==
        path + "/merges.txt: no merge makes \"in\" with id 257 nor 342 more pieces in " + path +
            "/vocab.json: truncated?");
  folder.write("vocab.json", "{\"th\": 0}");
  CHECK(load_error(folder.path()) == path +
                                         "/vocab.json: no piece \"!\", which stands for byte 0x21; "
                                         "expected all 256");
}

TEST_CASE("merges that were cut off at a line are noticed") {
  const fs::path source(DIPTYCH_SOURCE_DIR);
  for (const fs::path& whole :
       {source / "stage_configs/demo/checkpoint", kBagelGoldens / "checkpoint"}) {
    const test::Folder folder;
    for (const char* name : {"vocab.json", "tokenizer_config.json"})
      folder.write(name, read_file(whole / name));
    const std::string merges = read_file(whole / "merges.txt");
    std::size_t cuts = 0;
    for (std::size_t end = merges.size();
         (end = merges.rfind('\n', end - 1)) != std::string::npos &&
         end > std::string_view("#version: 0.2\n").size();) {
      if (++cuts % 40 != 1) continue;
      folder.write("merges.txt", merges.substr(0, end));
      const bool last = merges.size() - 1 == end;  // only its line's end is gone
      CHECK(load_error(folder.path()).find(last ? "accepted" : "merges.txt: no merge makes ") !=
            std::string::npos);
    }
    CHECK(cuts > 300);
    Json fast = Json::parse(read_file(whole / "tokenizer.json"));
    fast["model"]["merges"].erase(fast["model"]["merges"].size() - 1);
    const test::Folder other;
    other.write("tokenizer.json", fast.dump());
    CHECK(load_error(other.path()).find("/tokenizer.json: model.merges: no merge makes ") !=
          std::string::npos);
  }
}

TEST_CASE("a link that leads nowhere is a file that is missing") {
  const test::Folder folder;
  for (const char* name : {"merges.txt", "tokenizer_config.json", "tokenizer.json"})
    folder.write(name, read_file(kBagelGoldens / "checkpoint" / name));
  fs::create_symlink("nowhere", folder.path() / "vocab.json");
  CHECK(load_error(folder.path()) ==
        (folder.path() / "vocab.json").string() + ": is a link to nowhere, which is not there");
}

TEST_CASE("tokenizer.json is used where one of the three files is not") {
  const test::Folder folder;
  folder.write("vocab.json", "{}");
  folder.write("merges.txt", "");
  folder.write("tokenizer.json", read_file(kBagelGoldens / "checkpoint/tokenizer.json"));
  const auto tokenizer = load_byte_level_bpe(folder.path());
  CHECK(tokenizer->encode("<|im_start|>the") ==
        load_byte_level_bpe(kBagelGoldens / "checkpoint")->encode("<|im_start|>the"));
  folder.write("tokenizer.json", "{");
  CHECK(load_error(folder.path()) ==
        folder.path().string() + "/tokenizer.json:1:2: ends within its JSON: truncated?");
  Json without_merges = golden_fast_file();
  without_merges["model"]["merges"] = Json::array();
  folder.write("tokenizer.json", without_merges.dump());
  CHECK(load_error(folder.path()) ==
        folder.path().string() + "/tokenizer.json: model.merges: holds no merges: truncated?");
}

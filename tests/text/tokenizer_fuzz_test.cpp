// Random text and broken files, from a fixed seed. DIPTYCH_FUZZ_ITERATIONS sets how many of each;
// the default takes about two seconds.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/text/bpe_files.h"
#include "lib/text/byte_alphabet.h"
#include "lib/text/byte_level_bpe.h"
#include "lib/text/nfc.h"
#include "tests/text/support.h"

using namespace diptych;
using Json = nlohmann::json;

namespace {

using Ids = std::vector<std::int64_t>;

std::size_t iterations(std::size_t by_default) {
  const char* wanted = std::getenv("DIPTYCH_FUZZ_ITERATIONS");
  return wanted ? std::strtoull(wanted, nullptr, 10) : by_default;
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  template <typename List>
  const auto& one_of(const List& list) {
    return list[below(std::size(list))];
  }

 private:
  std::mt19937_64 engine_;
};

// What pre-tokeniser, form C, merges and added tokens each find interesting.
const std::vector<std::string_view> kTextParts = {"the",
                                                  " in",
                                                  "'s",
                                                  "'LL",
                                                  "'\u017F",
                                                  " ",
                                                  "  ",
                                                  "\t",
                                                  "\n",
                                                  "\r\n",
                                                  "\u00A0",
                                                  "\u2028",
                                                  "\u3000",
                                                  "\u0085",
                                                  "\x1F",
                                                  "7",
                                                  "\u00BD",
                                                  "\u0663",
                                                  "\u2167",
                                                  "!",
                                                  "--",
                                                  "<",
                                                  "|",
                                                  ">",
                                                  "<|im_start|>",
                                                  "<|im_end|>",
                                                  "<|im_end|",
                                                  "<|vision_start|>",
                                                  "<tool_call>",
                                                  "<|endoftext|>",
                                                  "e\u0301",
                                                  "\u0338",
                                                  "\u0323",
                                                  "\u0307",
                                                  "\u212B",
                                                  "\u1112\u1161\u11AB",
                                                  "\u11A7",
                                                  "\u4E2D",
                                                  "\U0001F44D\U0001F3FD",
                                                  "\u200D",
                                                  "\uFEFF",
                                                  "\uFFFE",
                                                  "\U0010FFFF",
                                                  "\xFF",
                                                  "\xC3",
                                                  "\xE4\xB8",
                                                  "\xED\xA0\x80",
                                                  "\xF4\x90\x80\x80",
                                                  std::string_view("\0", 1)};

char32_t random_code_point(Random& random) {
  static constexpr char32_t kLimits[] = {0x80, 0x300, 0x800, 0x3100, 0xFFFF, 0x10FFFF};
  const auto c = static_cast<char32_t>(random.below(random.one_of(kLimits) + 1));
  return c >= 0xD800 && c <= 0xDFFF ? U'a' : c;
}

std::string random_text(Random& random) {
  std::string text;
  for (std::size_t i = random.below(20); i > 0; --i) {
    switch (random.below(8)) {
      case 0:
        text.push_back(static_cast<char>(random.below(256)));
        break;
      case 1:
        append_utf8(text, random_code_point(random));
        break;
      case 2:
        append_utf8(text, 0x300 + static_cast<char32_t>(random.below(0x70)));
        break;
      default:
        text += random.one_of(kTextParts);
    }
  }
  return text;
}

std::optional<char32_t> largest_if_valid(const std::string& text) {
  try {
    return check_utf8(text);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

// Text becomes ids and the form C of itself again, or is refused as it should be.
bool round_trip_holds(const Tokenizer& tokenizer, const std::string& text) {
  const auto largest = largest_if_valid(text);
  const bool accepted = largest && can_normalise(*largest);
  try {
    const std::string decoded = tokenizer.decode(tokenizer.encode(text));
    return accepted && decoded == to_nfc(text);
  } catch (const InputError&) {
    return !accepted;
  }
}

void mutate(std::string& file, Random& random, const std::vector<std::string_view>& parts) {
  for (std::size_t i = 1 + random.below(3); i > 0; --i) {
    const std::size_t at = random.below(file.size() + 1);
    const std::size_t length = std::min(random.below(12), file.size() - at);
    switch (random.below(5)) {
      case 0:
        file.erase(at, length);
        break;
      case 1:
        file.insert(at, file.substr(random.below(file.size() + 1), random.below(30)));
        break;
      case 2:
        file.replace(at, length, random.one_of(parts));
        break;
      case 3:
        file.insert(at, random.one_of(parts));
        break;
      default:
        if (at < file.size()) file[at] = static_cast<char>(random.below(256));
    }
  }
}

struct Files {
  std::string vocab, merges, config, fast;
};

// All bytes, a few merges, two added tokens: small, so that many mutations fit in a second.
Files small_files() {
  Json vocab = Json::object();
  for (std::size_t i = 0; i < 256; ++i) vocab[alphabet_text(alphabet_order()[i])] = i;
  vocab["th"] = 256;
  vocab["the"] = 257;
  vocab["\u0120the"] = 258;
  Json fast = Json::parse(read_file(kBagelGoldens / "checkpoint/tokenizer.json"));
  fast["model"]["vocab"] = vocab;
  fast["model"]["merges"] = {"t h", "th e", "\u0120 the"};
  fast["added_tokens"] = {{{"id", 260}, {"content", "<|im_end|>"}, {"lstrip", false}},
                          {{"id", 261}, {"content", "<s>"}}};
  return {vocab.dump(), "#version: 0.2\nt h\nth e\n\u0120 the\n",
          R"({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"260": {"content":
            "<|im_end|>", "lstrip": false}, "261": {"content": "<s>"}}})",
          fast.dump()};
}

const std::vector<std::string_view> kFileParts = {"\"",
                                                  "{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  ",",
                                                  ":",
                                                  "null",
                                                  "true",
                                                  "0",
                                                  "-1",
                                                  "1e400",
                                                  "2147483648",
                                                  "256",
                                                  "18446744073709551616",
                                                  "1.5",
                                                  "\\u0000",
                                                  "\\ud800",
                                                  "\"th\"",
                                                  "\"content\"",
                                                  "\"id\"",
                                                  "\u0120",
                                                  "\u4E2D",
                                                  " ",
                                                  "\n",
                                                  "\r",
                                                  "t h",
                                                  "e the",
                                                  "#version: 0.2\n",
                                                  "\xFF",
                                                  "\"\":0,"};

}  // namespace

TEST_CASE("fuzz: any text survives, or is refused for its encoding") {
  const auto tokenizer = load_byte_level_bpe(kBagelGoldens / "checkpoint");
  Random random(1);
  std::size_t valid = 0;
  const std::size_t rounds = iterations(20000);
  for (std::size_t i = 0; i < rounds; ++i) {
    const std::string text = random_text(random);
    valid += largest_if_valid(text).has_value() ? 1 : 0;
    REQUIRE_MESSAGE(round_trip_holds(*tokenizer, text), "round " << i);
  }
  CHECK(valid > rounds / 10);
  CHECK(valid < rounds);
}

TEST_CASE("fuzz: any ids become UTF-8, or are refused") {
  const auto tokenizer = load_byte_level_bpe(kBagelGoldens / "checkpoint");
  Random random(2);
  const std::size_t rounds = iterations(20000);
  for (std::size_t i = 0; i < rounds; ++i) {
    Ids ids(random.below(20));
    for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random.below(623));
    const bool known = std::ranges::all_of(ids, [](std::int64_t id) { return id < 622; });
    try {
      const std::string text = tokenizer->decode(ids);
      const bool good = known && largest_if_valid(text).has_value();
      REQUIRE_MESSAGE(good, "round " << i);
    } catch (const InputError&) {
      REQUIRE_MESSAGE(!known, "round " << i);
    }
  }
}

TEST_CASE("fuzz: broken files give an InputError or a tokenizer that works") {
  const Files good = small_files();
  Random random(3);
  std::size_t refused = 0;
  const std::size_t rounds = iterations(10000);
  for (std::size_t i = 0; i < rounds; ++i) {
    Files files = good;
    const std::size_t which = random.below(4);
    mutate(which == 0   ? files.vocab
           : which == 1 ? files.merges
           : which == 2 ? files.config
                        : files.fast,
           random, kFileParts);
    try {
      const auto tokenizer =
          make_byte_level_bpe(which == 3 ? parse_fast_file({"t", files.fast})
                                         : parse_slow_files({"v", files.vocab}, {"m", files.merges},
                                                            {"c", files.config}));
      REQUIRE_MESSAGE(round_trip_holds(*tokenizer, random_text(random)), "round " << i);
    } catch (const InputError&) {
      ++refused;
    }
  }
  CHECK(refused > rounds / 4);
  CHECK(refused < rounds);
}

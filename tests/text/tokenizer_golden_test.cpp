// Golden case 09: ids and texts recorded from the official tokenizer; what exactly ran is in its
// case.json.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/utf8.h"
#include "lib/text/bpe_files.h"
#include "lib/text/byte_level_bpe.h"
#include "lib/text/nfc.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"

using namespace diptych;

namespace {

using Ids = std::vector<std::int64_t>;

nlohmann::json golden_case() {
  return nlohmann::json::parse(read_file(kBagelGoldens / "cases/09_tokenizer/case.json"));
}

// Those strings that any build can normalise, or the others.
void check_strings(const Tokenizer& tokenizer, bool plain, std::size_t expected) {
  std::size_t checked = 0;
  const auto golden = golden_case();
  for (const auto& row : golden.at("encode")) {
    const std::string text = row.at("text");
    if ((check_utf8(text) < kFirstNormalised) != plain) continue;
    INFO(text);
    const Ids ids = row.at("ids");
    CHECK(tokenizer.encode(text) == ids);
    CHECK(tokenizer.decode(ids) == row.at("decoded").get<std::string>());
    ++checked;
  }
  CHECK(checked == expected);
}

std::unique_ptr<Tokenizer> tokenizer_of_json() {
  const NamedText file{"tokenizer.json", read_file(kBagelGoldens / "checkpoint/tokenizer.json")};
  return make_byte_level_bpe(parse_fast_file(file));
}

constexpr std::size_t kPlain = 205, kOthers = 151;  // recorded strings

}  // namespace

TEST_CASE("golden strings become the recorded ids and texts") {
  check_strings(*load_byte_level_bpe(kBagelGoldens / "checkpoint"), true, kPlain);
}

TEST_CASE("tokenizer.json alone gives the same ids") {
  const auto tokenizer = tokenizer_of_json();
  CHECK(tokenizer->size() == 622);
  check_strings(*tokenizer, true, kPlain);
}

TEST_CASE("golden strings to be normalised become the recorded ids and texts" *
          doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  check_strings(*load_byte_level_bpe(kBagelGoldens / "checkpoint"), false, kOthers);
  check_strings(*tokenizer_of_json(), false, kOthers);
}

TEST_CASE("golden ids become the recorded texts") {
  const auto tokenizer = load_byte_level_bpe(kBagelGoldens / "checkpoint");
  std::size_t checked = 0;
  const auto golden = golden_case();
  for (const auto& row : golden.at("decode")) {
    CHECK(tokenizer->decode(row.at("ids").get<Ids>()) == row.at("decoded").get<std::string>());
    ++checked;
  }
  CHECK(checked == 120);
}

TEST_CASE("the tokens BAGEL puts around text and images have the recorded ids") {
  const auto tokenizer = load_byte_level_bpe(kBagelGoldens / "checkpoint");
  const auto golden = golden_case();
  const auto& ids = golden.at("new_token_ids");
  CHECK(tokenizer->token_id("<|im_start|>") == ids.at("bos_token_id").get<std::int64_t>());
  CHECK(tokenizer->token_id("<|im_end|>") == ids.at("eos_token_id").get<std::int64_t>());
  CHECK(tokenizer->token_id("<|vision_start|>") == ids.at("start_of_image").get<std::int64_t>());
  CHECK(tokenizer->token_id("<|vision_end|>") == ids.at("end_of_image").get<std::int64_t>());
  CHECK(tokenizer->token_id("\u0120the") == 259);
  CHECK_FALSE(tokenizer->token_id("no such piece").has_value());
  CHECK(tokenizer->size() == 622);
}

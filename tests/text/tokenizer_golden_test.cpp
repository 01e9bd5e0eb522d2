// Golden case 09: ids and texts recorded from the official tokenizer; what exactly ran is in its
// case.json.
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/utf8.h"
#include "lib/text/bpe_files.h"
#include "lib/text/byte_level_bpe.h"
#include "tests/text/support.h"

using namespace diptych;

namespace {

using Ids = std::vector<std::int64_t>;

nlohmann::json golden_case() {
  return nlohmann::json::parse(read_file(kBagelGoldens / "cases/09_tokenizer/case.json"));
}

void check_strings(const Tokenizer& tokenizer, const nlohmann::json& golden) {
  std::size_t checked = 0, skipped = 0;
  for (const auto& row : golden.at("encode")) {
    const std::string text = row.at("text");
    const Ids ids = row.at("ids");
    CHECK(tokenizer.decode(ids) == row.at("decoded").get<std::string>());
    if (!can_normalise(check_utf8(text))) {
      ++skipped;
      continue;
    }
    INFO(text);
    CHECK(tokenizer.encode(text) == ids);
    ++checked;
  }
  CHECK(checked + skipped == 356);
  CHECK(checked > 100);
  if (skipped > 0) MESSAGE(skipped << " strings not encoded: this build has no utf8proc");
}

}  // namespace

TEST_CASE("golden strings become the recorded ids and texts") {
  const auto tokenizer = load_byte_level_bpe(kBagelGoldens / "checkpoint");
  check_strings(*tokenizer, golden_case());
}

TEST_CASE("tokenizer.json alone gives the same ids") {
  const NamedText file{"tokenizer.json", read_file(kBagelGoldens / "checkpoint/tokenizer.json")};
  const auto tokenizer = make_byte_level_bpe(parse_fast_file(file));
  CHECK(tokenizer->size() == 622);
  check_strings(*tokenizer, golden_case());
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

// Lance's golden case 14: strings that the official tokenizer made ids and text of.
#include <doctest/doctest.h>

#include "lib/base/utf8.h"
#include "lib/text/bpe_files.h"
#include "lib/text/byte_level_bpe.h"
#include "tests/pipelines/lance_cases.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"

namespace diptych {
namespace {

// Those strings that any build can normalise, or the others -> how many.
std::size_t check_strings(const Tokenizer& tokenizer, bool plain) {
  std::size_t checked = 0;
  const auto golden = test::read_json(test::kLanceGoldens / "cases/14_tokenizer/case.json");
  for (const auto& row : golden.at("table")) {
    const std::string text = row.at("text");
    if ((check_utf8(text) < 0x300) != plain) continue;
    INFO(text);
    const auto ids = row.at("ids").get<std::vector<std::int64_t>>();
    CHECK(tokenizer.encode(text) == ids);
    CHECK(tokenizer.decode(ids) == row.at("decoded").get<std::string>());
    ++checked;
  }
  return checked;
}

constexpr std::size_t kPlain = 24, kOthers = 6;  // recorded strings

TEST_CASE("golden strings become the recorded ids and texts") {
  CHECK(check_strings(test::lance_tokenizer(), true) == kPlain);
  CHECK(test::lance_tokenizer().size() == 622);
}

TEST_CASE("golden strings to be normalised become the recorded ids and texts" *
          doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(0x300)) return test::skip(kNoUtf8proc);
  CHECK(check_strings(test::lance_tokenizer(), false) == kOthers);
}

TEST_CASE("tokenizer.json alone gives the same ids") {
  const NamedText file{"tokenizer.json",
                       read_file(test::kLanceGoldens / "checkpoint/Lance_3B/tokenizer.json")};
  CHECK(check_strings(*make_byte_level_bpe(parse_fast_file(file)), true) == kPlain);
}

}  // namespace
}  // namespace diptych

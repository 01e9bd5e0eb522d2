// Rows recorded from diffusers 0.39 (with ftfy 6.3.1 and without) and vLLM-Omni 0.30.
#include "lib/text/prompt_cleaning.h"

#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/text/fix_text.h"
#include "lib/text/html_entities.h"
#include "lib/text/mojibake.h"
#include "lib/text/nfc.h"
#include "tests/support/skip.h"
#include "tests/text/support.h"
#include "tests/text/t5_goldens.h"

using namespace diptych;

namespace {

std::size_t check_rows(const char* key, PromptCleaning cleaning) {
  const auto rows = nlohmann::json::parse(read_file(kT5Goldens / "prompt_clean.json"));
  for (const auto& row : rows) {
    const std::string raw = row.at("raw");
    INFO(raw);
    CHECK(clean_prompt(raw, cleaning) == row.at(key).get<std::string>());
  }
  return rows.size();
}

}  // namespace

TEST_CASE("prompts are cleaned as diffusers and vLLM-Omni clean them") {
  CHECK(check_rows("cleaned_without_ftfy", PromptCleaning::diffusers) == 54);
  CHECK(check_rows("vllm_omni_clean", PromptCleaning::whitespace) == 54);
}

TEST_CASE("prompts are cleaned as diffusers with ftfy cleans them" *
          doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  CHECK(check_rows("cleaned_with_ftfy", PromptCleaning::ftfy) == 54);
}

TEST_CASE("no cleaning, and stripping alone") {
  const std::string raw = " \x1F&amp;  x\u00A0\u3000";
  CHECK(clean_prompt(raw, PromptCleaning::none) == raw);
  CHECK(clean_prompt(raw, PromptCleaning::strip) == "&amp;  x");
  CHECK(clean_prompt(" \n", PromptCleaning::strip).empty());
  CHECK(clean_prompt("", PromptCleaning::diffusers).empty());
  CHECK_THROWS_AS(clean_prompt("a\xFF", PromptCleaning::none), InputError);
}

TEST_CASE("HTML references as Python's html.unescape() has them") {
  CHECK(unescape_html("&amp;lt; &ampx &notin &notit; &CounterClockwiseContourIntegral;") ==
        "&lt; &x \u00ACin \u00ACit; \u2233");
  CHECK(unescape_html("&#38;#65 &#x41;&#X41&#x;&#; &#xZ") == "&#65 AA&#x;&#; &#xZ");
  CHECK(unescape_html("&#xD800;&#1114112;&#99999999999999999999;|&#1;&#xFDD0;|&#13;") ==
        "\uFFFD\uFFFD\uFFFD||\r");
  CHECK(unescape_html("&#129;&#x9F;") == "\u0081\u0178");
  CHECK(unescape_html("&&& &a &unknown; &\u4E2D;") == "&&& &a &unknown; &\u4E2D;");
  CHECK(unescape_html("&bne;&") == "=\u20E5&");
}

TEST_CASE("HTML references as ftfy has them") {
  CHECK(unescape_closed_html("this&not that &notit; &amp") == "this&not that &notit; &amp");
  CHECK(unescape_closed_html("P&EACUTE;REZ &SZLIG; &nTILDE; &GTDOT;") ==
        "P\u00C9REZ SS &nTILDE; &GTDOT;");
  CHECK(unescape_closed_html("&#59;&#x41;&#12ab;&#abc;") == "&#59;A&#12ab;&#abc;");
}

TEST_CASE("HTML stays where the text before it has a '<'" * doctest::test_suite("needs utf8proc")) {
  if (!can_normalise(kFirstNormalised)) return test::skip(kNoUtf8proc);
  CHECK(fix_text("&eacute;\n<\n&eacute;") == "\u00E9\n<\n&eacute;");
  CHECK(fix_text("\x1B[1;31mx\x1B[m\x1B[1\n") == "x[1\n");
}

TEST_CASE("lines that were UTF-8 and read in another encoding") {
  CHECK(repair_mojibake("voil\u00C3\u00A0") == "voil\u00E0");
  CHECK(repair_mojibake("\u00E2\u20AC\u0153x\u00E2\u20AC\u009D") == "\u201Cx\u201D");
  CHECK(repair_mojibake("\u00C3\u0192\u00C2\u00A9") == "\u00E9");    // twice
  CHECK(repair_mojibake("CAF\u00C9\u2019S") == "CAF\u00C9\u2019S");  // meant, though it is UTF-8
  CHECK(repair_mojibake("\u00C3") == "\u00C3");
  CHECK(repair_mojibake("\u4E2D\u00C3\u00A9") == "\u4E2D\u00C3\u00A9");
}

#include "lib/verify/answers.h"

#include <doctest/doctest.h>

namespace diptych {
namespace {

TEST_CASE("the last box counts, with its braces matched") {
  CHECK(last_boxed("so \\boxed{1} and \\boxed{\\frac{1}{2}}.") == "\\frac{1}{2}");
  CHECK(last_boxed("\\boxed{}") == "");
  CHECK_FALSE(last_boxed("\\boxed{1").has_value());
  CHECK_FALSE(last_boxed("42").has_value());
}

TEST_CASE("the last number of a text") {
  CHECK(last_number("costs $1,234.50 in all.") == "1234.5");
  CHECK(last_number("5-10") == "10");
  CHECK(last_number("it is -7") == "-7");
  CHECK(last_number("-007.0") == "-7");
  CHECK(last_number("1, 2, 3") == "3");
  CHECK(last_number("x = .5") == "0.5");
  CHECK(last_number("-0") == "0");
  CHECK_FALSE(last_number("none").has_value());
  CHECK_FALSE(last_number("").has_value());
}

TEST_CASE("an answer of GSM8K is right by its number") {
  CHECK(gives_number("Step 3: \\boxed{72} eggs on day 9", " 72"));
  CHECK(gives_number("The answer is 1,072.", "1072"));
  CHECK(gives_number("\\boxed{\\text{none}} but 5", "5"));
  CHECK_FALSE(gives_number("72 or 73", "72"));
  CHECK_FALSE(gives_number("", "72"));
  CHECK_FALSE(gives_number("72", "unknown"));
}

TEST_CASE("an answer of MATH-500 is right by what its box holds, however it is written") {
  CHECK(gives_expression("\\boxed{\\dfrac{1}{2}}", "\\frac12"));
  CHECK(gives_expression("\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}", "(3,\\frac{\\pi}{2})"));
  CHECK(gives_expression("\\boxed{12,345}", "12345"));
  CHECK(gives_expression("\\boxed{10\\text{ cm}}", "10 cm"));
  CHECK(gives_expression("\\boxed{90^\\circ}", "90"));
  CHECK(gives_expression("\\boxed{.5}", "0.5"));
  CHECK_FALSE(gives_expression("\\boxed{(1,2)}", "12"));
  CHECK_FALSE(gives_expression("\\boxed{0.5}", "\\frac{1}{2}"));
  CHECK_FALSE(gives_expression("42", "42"));
}

}  // namespace
}  // namespace diptych

// Whether an answer in words gives the result that is known to be right.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace diptych {

// What stands in the last \boxed{...} of the text, braces matched; nothing where there is none.
std::optional<std::string_view> last_boxed(std::string_view text);

// The last number of the text, in a plain form: "1234.5" of "$1,234.50"; nothing where there is
// none.
std::optional<std::string> last_number(std::string_view text);

// GSM8K: the number in the last box, else the last number of the answer, is the right one.
bool gives_number(std::string_view answer, std::string_view right);

// MATH-500: what the last box holds is the right one, once blanks, \left and \right, \text,
// dollar signs, degrees, \dfrac and \tfrac and the like are written the same way. No value is
// computed: 1/2 is not 0.5.
bool gives_expression(std::string_view answer, std::string_view right);

}  // namespace diptych

#include "lib/verify/answers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace diptych {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

// \text{cm} -> cm: the braces go, too.
void unwrap(std::string& text, std::string_view command) {
  const std::string opening = std::string(command) + '{';
  for (std::size_t at = text.find(opening); at != std::string::npos; at = text.find(opening)) {
    const std::size_t end = text.find('}', at);
    if (end == std::string::npos) return;
    text.erase(end, 1);
    text.erase(at, opening.size());
  }
}

// \frac12 -> \frac{1}{2}
void brace_fractions(std::string& text) {
  constexpr std::string_view kFraction = "\\frac";
  for (std::size_t at = text.find(kFraction); at != std::string::npos;
       at = text.find(kFraction, at + 1)) {
    const std::size_t begin = at + kFraction.size();
    if (begin + 1 < text.size() && is_digit(text[begin]) && is_digit(text[begin + 1]))
      text.replace(begin, 2, std::string{'{', text[begin], '}', '{', text[begin + 1], '}'});
  }
}

std::string normalised(std::string_view expression) {
  std::string text(expression);
  static constexpr auto kPairs = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"\\left", ""},
      {"\\right", ""},
      {"\\!", ""},
      {"\\,", ""},
      {"\\;", ""},
      {"\\ ", ""},
      {"\\$", ""},
      {"$", ""},
      {"\\%", ""},
      {"%", ""},
      {"^{\\circ}", ""},
      {"^\\circ", ""},
      {"\\dfrac", "\\frac"},
      {"\\tfrac", "\\frac"},
      {"\\cdot", "*"},
      {"\\times", "*"},
      {"\\{", "{"},
      {"\\}", "}"},
  });
  for (const auto& [from, to] : kPairs) replace_all(text, from, to);
  for (const char* command : {"\\text", "\\mathrm", "\\textbf", "\\mbox"}) unwrap(text, command);
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '~'; });
  brace_fractions(text);
  while (text.ends_with('.')) text.pop_back();
  // 12,345 is a number; (1,2) is not.
  const bool number = !text.empty() && std::ranges::all_of(text, [](char c) {
    return is_digit(c) || c == ',' || c == '.' || c == '-';
  });
  if (number) std::erase(text, ',');
  if (text.starts_with('.')) text.insert(0, 1, '0');
  return text;
}

// "0045.500" -> "45.5"
std::string plain_number(std::string text) {
  std::erase(text, ',');
  const bool negative = text.starts_with('-');
  if (negative) text.erase(0, 1);
  if (text.find('.') != std::string::npos) {
    while (text.ends_with('0')) text.pop_back();
    if (text.ends_with('.')) text.pop_back();
  }
  const std::size_t first = text.find_first_not_of('0');
  text.erase(0, std::min(first, text.size()));
  if (text.empty() || text.starts_with('.')) text.insert(0, 1, '0');
  return negative && text != "0" ? "-" + text : text;
}

}  // namespace

std::optional<std::string_view> last_boxed(std::string_view text) {
  constexpr std::string_view kBox = "\\boxed{";
  const std::size_t box = text.rfind(kBox);
  if (box == std::string_view::npos) return std::nullopt;
  const std::string_view inside = text.substr(box + kBox.size());
  std::size_t open = 1;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    if (inside[i] == '{') ++open;
    if (inside[i] == '}' && --open == 0) return inside.substr(0, i);
  }
  return std::nullopt;
}

std::optional<std::string> last_number(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0 && !is_digit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  std::size_t begin = end;
  const auto belongs = [&](std::size_t at) {
    const char c = text[at];
    if (is_digit(c)) return true;
    const bool between = at > 0 && is_digit(text[at - 1]) && at + 1 < end && is_digit(text[at + 1]);
    return c == '.' ? between || (at + 1 < end && is_digit(text[at + 1])) : c == ',' && between;
  };
  while (begin > 0 && belongs(begin - 1)) --begin;
  const bool signed_number =
      begin > 0 && text[begin - 1] == '-' &&
      (begin == 1 || std::isalnum(static_cast<unsigned char>(text[begin - 2])) == 0);  // not 5-10
  if (signed_number) --begin;
  return plain_number(std::string(text.substr(begin, end - begin)));
}

bool gives_number(std::string_view answer, std::string_view right) {
  const auto expected = last_number(right);
  const auto box = last_boxed(answer);
  const auto found = last_number(box && last_number(*box) ? *box : answer);
  return expected && found == expected;
}

bool gives_expression(std::string_view answer, std::string_view right) {
  const auto box = last_boxed(answer);
  return box && normalised(*box) == normalised(right);
}

}  // namespace diptych

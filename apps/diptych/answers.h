// What the program always answers with the same text: help, the version, completions. The build
// asks the library for them (make_answers.cpp), so that the executable has them without it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace diptych {

struct Answer {
  std::string_view request;  // its arguments, each with '\0' behind it
  std::string_view text;     // for stdout; the exit code is 0
};

std::span<const Answer> all_answers();
// The variables that can change an answer: with one of them set, the program is asked.
std::span<const std::string_view> answer_variables();

// The text for these arguments in this environment; nullptr where there is none.
const Answer* find_answer(int argc, char** argv);

// What make_answers asks the program.
struct FixedRequests {
  std::vector<std::vector<std::string>> arguments;
  std::vector<std::string> variables;
};
FixedRequests fixed_requests();

}  // namespace diptych

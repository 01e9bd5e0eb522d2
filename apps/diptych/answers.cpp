#include "apps/diptych/answers.h"

#include <algorithm>
#include <cstdlib>

namespace diptych {

const Answer* find_answer(int argc, char** argv) {
  const auto is_set = [](std::string_view name) { return std::getenv(name.data()) != nullptr; };
  if (std::ranges::any_of(answer_variables(), is_set)) return nullptr;
  std::string request;
  for (int i = 1; i < argc; ++i) request.append(argv[i]).push_back('\0');
  const auto answers = all_answers();
  const auto found = std::ranges::find(answers, request, &Answer::request);
  return found == answers.end() ? nullptr : &*found;
}

}  // namespace diptych

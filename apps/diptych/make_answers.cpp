// make_answers FILE.cpp: a step of the build. Asks the program what it always answers with the same
// text and writes that down as the tables of answers.h.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/diptych/answers.h"
#include "apps/diptych/program.h"

namespace diptych {
namespace {

using Words = std::vector<std::string>;

// In a child: the program ends its process. The libraries stay loaded, so this takes a millisecond.
std::string ask(Words words) {
  words.insert(words.begin(), "diptych");
  std::FILE* const out = std::tmpfile();
  if (out == nullptr) throw std::runtime_error("no temporary file");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    dup2(fileno(out), STDOUT_FILENO);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    run_program(static_cast<int>(words.size()), arguments.data());
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw std::runtime_error(fmt::format("{} {}: failed", words.at(0), words.at(1)));
  std::string text;
  std::rewind(out);
  std::array<char, 4096> buffer;
  while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), out))
    text.append(buffer.data(), bytes);
  std::fclose(out);
  return text;
}

// As a literal, a line of the source for each of the text; `bytes` beyond ASCII in octal.
std::string literal(std::string_view text) {
  std::string code = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      code += '\\';
      code += letter;
    } else if (byte < 0x20 || byte >= 0x7f) {
      code += fmt::format("\\{:03o}", byte);
      if (letter == '\n') code += "\"\n    \"";
    } else {
      code += letter;
    }
  }
  return code + "\"";
}

std::string tables(const FixedRequests& fixed) {
  std::string texts, answers, variables;
  std::map<std::string, std::size_t> known;  // --help and -h say the same
  for (const Words& words : fixed.arguments) {
    const std::string text = ask(words);
    const auto [found, is_new] = known.emplace(text, known.size());
    if (is_new)
      texts += fmt::format("constexpr char kText{}[] =\n    {};\n", found->second, literal(text));
    std::string request;
    for (const std::string& word : words) request.append(word).push_back('\0');
    answers += fmt::format("    {{{{{}, {}}}, {{kText{}, {}}}}},\n", literal(request),
                           request.size(), found->second, text.size());
  }
  for (const std::string& name : fixed.variables)
    variables += fmt::format("    {},\n", literal(name));
  return fmt::format(
      "// Made by make_answers.\n#include \"apps/diptych/answers.h\"\n\nnamespace diptych {{\n"
      "namespace {{\n\n{}\nconstexpr Answer kAnswers[] = {{\n{}}};\n\n"
      "constexpr std::string_view kVariables[] = {{\n{}}};\n\n}}  // namespace\n\n"
      "std::span<const Answer> all_answers() {{\n  return kAnswers;\n}}\n\n"
      "std::span<const std::string_view> answer_variables() {{\n  return kVariables;\n}}\n\n"
      "}}  // namespace diptych\n",
      texts, answers, variables);
}

int make(const char* path) {
  clearenv();
  const std::string code = tables(fixed_requests());
  std::ofstream file(path, std::ios::binary);
  file << code;
  file.close();
  if (!file) throw std::runtime_error(fmt::format("{}: write failed", path));
  return 0;
}

}  // namespace
}  // namespace diptych

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    std::_Exit(diptych::make(argv[1]));  // without the libraries' destructors
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make_answers: %s\n", error.what());
    return 1;
  }
}

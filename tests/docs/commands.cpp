// The commands that documents show are held against the parser: verbs and flags exist.
#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tests/docs/pages.h"

namespace diptych::docs {
namespace {

struct Word {
  std::string text;
  bool is_quoted = false;
};

// As a shell would, as far as documents need it. A comment ends the line.
std::vector<Word> words_of(const std::string& line) {
  std::vector<Word> words;
  for (std::size_t i = 0; i < line.size();) {
    if (line[i] == ' ') {
      ++i;
      continue;
    }
    if (line[i] == '#') break;
    Word word;
    for (; i < line.size() && line[i] != ' '; ++i) {
      if (line[i] != '"' && line[i] != '\'') {
        word.text += line[i];
        continue;
      }
      word.is_quoted = true;
      const std::size_t close = line.find(line[i], i + 1);
      const std::size_t end = close == std::string::npos ? line.size() : close;
      word.text += line.substr(i + 1, end - i - 1);
      i = std::min(end, line.size() - 1);
    }
    words.push_back(std::move(word));
  }
  return words;
}

bool is_program(const Word& word) {
  return word.text == "diptych" || word.text.ends_with("/diptych");
}

bool ends_command(const Word& word) {
  return !word.is_quoted && (word.text == "|" || word.text == "&&" || word.text == ";");
}

// Behind variables, or behind what starts it on several hosts; `ninja diptych` names a target.
bool begins_command(const std::vector<Word>& words, std::size_t i) {
  return i == 0 || ends_command(words[i - 1]) || words.front().text == "srun" ||
         words[i - 1].text.find('=') != std::string::npos;
}

bool knows(const CLI::App& app, const std::string& flag) {
  return app.get_option_no_throw(flag) != nullptr;
}

void check_command(const std::vector<Word>& words, std::size_t program, const std::string& place,
                   const CLI::App& app, Problems& problems) {
  const CLI::App* verb = nullptr;
  for (std::size_t i = program + 1; i < words.size() && !ends_command(words[i]); ++i) {
    const std::string name = words[i].text.substr(0, words[i].text.find('='));
    const bool is_flag =
        !words[i].is_quoted && name.starts_with('-') && name != "-" && name != "--";
    if (is_flag) {
      const bool known = (verb != nullptr && knows(*verb, name)) || knows(app, name);
      if (!known) problems.push_back(fmt::format("{}: unknown flag '{}'", place, name));
    } else if (verb == nullptr) {
      try {
        verb = app.get_subcommand(name);
      } catch (const CLI::OptionNotFound&) {
        problems.push_back(fmt::format("{}: unknown verb '{}'", place, name));
        return;
      }
    }
  }
}

}  // namespace

void check_commands(const Page& page, const CLI::App& app, Problems& problems) {
  std::istringstream lines(page.text);
  std::string line, command;
  bool in_shell = false;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    if (line.starts_with("```")) {
      in_shell = line == "```sh";
      continue;
    }
    if (!in_shell) continue;
    command += line;
    if (command.ends_with('\\')) {
      command.back() = ' ';
      continue;
    }
    const std::vector<Word> words = words_of(command);
    command.clear();
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (is_program(words[i]) && begins_command(words, i))
        check_command(words, i, fmt::format("{}:{}", page.name, number), app, problems);
    }
  }
}

}  // namespace diptych::docs

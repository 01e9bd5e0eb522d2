// One function per verb, each in a file of its name. It adds its subcommand to the parser; when
// that subcommand is chosen, `run` becomes the function that executes it and returns 0 or 1 (a
// failed check). Errors are thrown; program.cpp alone catches them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lib/base/log.h"

namespace CLI {
class App;
class FormatterBase;
}  // namespace CLI

namespace diptych {

using Run = std::function<int(Log&)>;

// Several values of a repeatable flag in one text, as a variable must hold them; empty ones do not
// count. The same in every verb.
inline constexpr char kListSeparator = ';';

// For CLI::Option::check(): what is wrong with the text of a path, "" = nothing.
inline std::string path_problem(const std::string& path) {
  return path.empty() ? "is empty; expected a path" : "";
}
// The same of a number's text. CLI11 takes an empty one for a number that was not given.
inline std::string number_problem(const std::string& number) {
  return number.empty() ? "is empty; expected a number" : "";
}
// Of the folder that a verb writes.
inline std::string folder_problem(const std::string& folder) {
  return folder == "-"
             ? "found -, which is stdout elsewhere; expected a folder (./- for one of that name)"
             : path_problem(folder);
}

void add_generate(CLI::App& app, Run& run);
void add_batch(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_calibrate(CLI::App& app, Run& run);
void add_tune(CLI::App& app, Run& run);
void add_verify(CLI::App& app, Run& run);
void add_check(CLI::App& app, Run& run);
void add_compare(CLI::App& app, Run& run);
void add_inspect(CLI::App& app, Run& run);
void add_devices(CLI::App& app, Run& run);
void add_version(CLI::App& app, Run& run);
void add_completion(CLI::App& app, Run& run);
void add_help(CLI::App& app, Run& run);
std::shared_ptr<CLI::FormatterBase> help_format();  // of all verbs

}  // namespace diptych

// The command line around the verbs: the parser with every verb, the flags that all of them share,
// and one-line messages for what it refuses.
#pragma once

#include <string>
#include <vector>

#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/log.h"

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace diptych {

struct SharedFlags {
  std::string log_level = "info";
  bool verbose = false, quiet = false;
};

// Fills `app`; the verb that is chosen leaves its function in `run`. `shared` outlives the parse.
void build_command_line(CLI::App& app, SharedFlags& shared, Run& run);

// What the shared flags ask for, or the variables where none of the flags is given. Throws
// InputError for an unknown level, and for two of them.
LogLevel chosen_level(const CLI::App& app, const SharedFlags& shared);

// The arguments as CLI11 parses them, last first. "--name=" becomes two: CLI11 would take the word
// behind it as the value.
std::vector<std::string> reversed_arguments(int argc, char** argv);

// The message for an argument that nothing took, with the nearest flag or verb.
std::string describe_unknown_argument(const CLI::App& app);
// Whether the option was given, and not by a variable.
bool on_command_line(const CLI::App& app, const CLI::Option* option);
// The option's flag, or its variable where that is how it was given.
std::string given_name(const CLI::App& app, const CLI::Option& option);
// The error's message with variables in the place of the flags of its settings, where that is how
// they were given. Of flags that the parser reads from variables; lib/config knows the places of
// the others.
std::string error_text(const CLI::App& app, const InputError& error);
// "generate: --steps: given without a value; expected N".
std::string describe_parse_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace diptych

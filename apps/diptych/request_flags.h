// The flags of a request, which generate takes for one and batch as defaults for all; made from the
// list of fields.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/log.h"
#include "lib/config/resolve.h"

namespace CLI {
class App;
}  // namespace CLI

namespace diptych {

// Which fields a verb takes as flags and variables.
using FieldChoice = bool (*)(const Field&);
inline bool takes_every_field(const Field&) {
  return true;
}

struct RequestFlags {
  std::map<std::string, std::vector<std::string>> values;  // by the flags of the field or group
  std::vector<FlagInput> inputs;                           // in order
  std::vector<std::string> overrides;
  bool print_config = false, check_config = false;

  // With the environment, but only the variables of fields that the verb takes.
  Sources sources(FieldChoice takes = takes_every_field) const;
};

// `flags` outlives the parse; read_request_inputs() then fills its inputs.
void add_request_flags(CLI::App& verb, RequestFlags& flags, FieldChoice takes = takes_every_field);
void read_request_inputs(const CLI::App& verb, RequestFlags& flags);

// Of the process, as Sources asks for it.
std::optional<std::string> environment(const std::string& name);

// Warns of variables that do nothing: they are nearly ours, or of a field that the verb does not
// take.
void warn_of_idle_variables(Log& log, FieldChoice takes = takes_every_field);

// What the sources ask for, of a family that is known. Warns as warn_of_idle_variables(). `how`:
// resolve_sources() where items of a list come later.
Resolved resolve_request(const Sources& sources, Log& log, FieldChoice takes = takes_every_field,
                         Resolved (*how)(const Sources&) = resolve);

// A text "-" becomes what stdin holds and a picture or video "-" the path of a file with it; @FILE
// becomes what the file holds, and @@ a plain @ in front of a prompt. Throws InputError for a
// second "-", for one where a list takes stdin, and for what cannot be read.
void read_stdin_and_files(std::vector<InputItem>& inputs, bool stdin_is_taken = false);

// Runs `work`; an error of it about a field's value names the place where that came from. Errors
// about flags that are no fields are rendered in program.cpp.
template <typename Work>
auto with_places(const Resolved& resolved, const Work& work) {
  try {
    return work();
  } catch (const InputError& error) {
    const SettingProblem* problem = error.problem();
    if (problem == nullptr || !field_of_setting(problem->setting.name, fields_of(resolved.options)))
      throw;
    throw InputError(error_text(error, resolved));
  }
}

// Takes the texts as they are; lib/config reads them.
void add_text_option(CLI::App& verb, std::string_view flags, std::string_view value,
                     const std::string& help, std::vector<std::string>& texts);

// The parts of "256x256,512x512". None is looked at: "" has one, which is empty.
std::vector<std::string> split_list(const std::string& values);
// One of a --sizes as the width and height of a request. Throws InputError about --sizes.
void assign_size(Options& options, const std::string& size);

}  // namespace diptych

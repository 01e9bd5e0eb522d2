// What a request comes to, from its flags and all other sources.
#pragma once

#include <string>
#include <vector>

#include "apps/diptych/request_flags.h"
#include "lib/base/log.h"
#include "lib/config/family_fields.h"
#include "lib/config/resolve.h"

namespace diptych {

// The flags with the environment, but only the variables of fields that the verb takes.
Sources sources_of(const RequestFlags& flags, FieldChoice takes = takes_every_field);

// Warns of variables that are nearly one of a field or of a flag of any verb of `program`.
void warn_of_misspelt_variables(const CLI::App& program, Log& log);
// Warns of variables of fields that the verb does not take.
void warn_of_idle_variables(Log& log, FieldChoice takes);

// Errors about prompts that all come from --prompt-file name that flag.
void name_prompt_files(Resolved& resolved, const RequestFlags& flags);

// What the sources ask for, of a family that is known. Warns as warn_of_idle_variables(). `how`:
// resolve_sources() where items of a list come later.
Resolved resolve_request(const RequestFlags& flags, Log& log, FieldChoice takes = takes_every_field,
                         Resolved (*how)(const Sources&) = resolve);

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

// The parts of "256x256,512x512". None is looked at: "" has one, which is empty.
std::vector<std::string> split_list(const std::string& values);
// One of a --sizes as the width and height of a request. Throws InputError about --sizes.
void assign_size(Options& options, const std::string& size);

}  // namespace diptych

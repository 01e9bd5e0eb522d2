#include "apps/diptych/request_sources.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "apps/diptych/demo.h"
#include "apps/diptych/prompt_files.h"
#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/config/words.h"
#include "lib/pipelines/registry.h"

namespace diptych {
namespace {

// The fields that are flags, of all families.
const std::vector<Field>& all_flags() {
  static const std::vector<Field> flags = flag_fields(all_family_configs());
  return flags;
}

// The variables of fields that the verb does not take.
std::set<std::string> variables_left_out(FieldChoice takes) {
  std::set<std::string> names;
  for (const Field& field : all_flags()) {
    if (takes(field)) continue;
    for (const std::string_view flag : long_names(field.flags))
      names.insert(environment_name(flag));
  }
  return names;
}

// What counts instead of a variable that is named after another name of a flag: "DIPTYCH_STEPS" for
// "DIPTYCH_NUM_STEPS". "" if it is not named so.
std::string variable_of_alias(std::string_view variable) {
  const auto is_in = [&](std::string_view flags) {
    return std::ranges::any_of(long_names(flags), [&](std::string_view name) {
      return environment_name(name) == variable;
    });
  };
  const auto first = [](std::string_view flags) {
    return environment_name(long_names(flags).front());
  };
  for (const Field& field : all_flags()) {
    if (is_in(field.aliases)) return first(field.flags);
  }
  for (const FlagGroup& group : all_flag_groups()) {
    if (is_in(group.aliases)) return first(group.flags);
  }
  if (is_in(kPromptFileFlags)) return first(kPromptFlags) + "=@FILE";
  return is_in(kImageFlags) ? first(kImageFlags) : "";
}

}  // namespace

Sources sources_of(const RequestFlags& flags, FieldChoice takes) {
  Environment environment = process_environment();
  for (const std::string& name : variables_left_out(takes)) environment.variables.erase(name);
  // @FILE, as of the flag.
  const Field& negative = all_fields()[field_index("negative_prompt")];
  const auto variable = environment.variables.find(environment_name("negative_prompt"));
  const auto flag = flags.values.find(std::string(negative.flags));
  const bool has_flag = flag != flags.values.end() && !flag->second.empty();
  std::filesystem::path file = flags.negative_file;
  if (variable != environment.variables.end() && !has_flag)
    variable->second = read_prompt(variable->second, Setting::of("negative_prompt"), &file);
  return {flags.inputs, flags.values,         flags.overrides, std::move(environment),
          find_demos(), all_family_configs(), std::move(file)};
}

void warn_of_misspelt_variables(const CLI::App& program, Log& log) {
  std::vector<std::string> names = {"DIPTYCH_CUDA", "DIPTYCH_GOLDENS",  // of set-up and tests
                                    "DIPTYCH_FUZZ_ITERATIONS"};
  const auto add_of = [&](const CLI::App& app) {
    for (const CLI::Option* option : app.get_options())
      if (!option->get_envname().empty()) names.push_back(option->get_envname());
  };
  add_of(program);
  for (const CLI::App* verb : program.get_subcommands({})) add_of(*verb);
  for (const std::string_view flags : {kPromptFlags, kImageFlags, kVideoFlags})
    names.push_back(environment_name(long_names(flags).front()));
  const auto add = [&](std::string_view flags) {
    for (const std::string_view name : long_names(flags)) names.push_back(environment_name(name));
  };
  for (const Field& field : all_flags()) add(field.flags);
  for (const FlagGroup& group : all_flag_groups()) add(group.flags);
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (const auto& [name, value] : process_environment().variables) {
    if (!name.starts_with("DIPTYCH_") || std::ranges::find(known, name) != known.end()) continue;
    const std::string of_alias = variable_of_alias(name);
    const std::string_view near = of_alias.empty() ? nearest_word(name, known) : of_alias;
    if (!near.empty()) log.warning("{} has no effect; did you mean {}?", name, near);
  }
}

void warn_of_idle_variables(Log& log, FieldChoice takes) {
  const auto given = process_environment().variables;
  for (const std::string& name : variables_left_out(takes))
    if (given.contains(name)) log.warning("{} has no effect on this verb", name);
}

void name_prompt_files(Resolved& resolved, const RequestFlags& flags) {
  const auto texts = std::ranges::count(flags.inputs, MediaKind::text, &FlagInput::kind);
  if (texts > 0 && std::cmp_equal(texts, flags.prompt_files.size()))
    resolved.input_places[MediaKind::text] = "--prompt-file";
}

Resolved resolve_request(const RequestFlags& flags, Log& log, FieldChoice takes,
                         Resolved (*how)(const Sources&)) {
  warn_of_idle_variables(log, takes);
  Resolved resolved = how(sources_of(flags, takes));
  name_prompt_files(resolved, flags);
  with_places(resolved, [&] { find_family(resolved.options.run.pipeline); });
  return resolved;
}

std::vector<std::string> split_list(const std::string& values) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= values.size();) {
    const std::size_t end = std::min(values.find(',', begin), values.size());
    parts.push_back(values.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void assign_size(Options& options, const std::string& size) {
  const Setting sizes = Setting::of("sizes");
  const auto groups = all_flag_groups();
  const FlagGroup& group = *std::ranges::find(groups, "--size", &FlagGroup::flags);
  for (const auto& [name, value] : group.expand(size, sizes)) {
    about(sizes, [&, &name = name, &value = value] {
      assign(all_fields()[field_index(name)], options, value, name);
    });
  }
}

}  // namespace diptych

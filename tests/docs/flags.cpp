// Tables of the verbs' flags, made from the parser.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/config/family_fields.h"
#include "lib/config/fields.h"
#include "lib/config/flag_hints.h"
#include "lib/pipelines/registry.h"
#include "tests/docs/pages.h"

namespace diptych::docs {
namespace {

struct Flag {
  std::string names, aliases, value, help, preset, variable;
  bool operator==(const Flag&) const = default;
};

bool has_long_name(std::string_view flags, std::string_view name) {
  const std::vector<std::string_view> names = long_names(flags);
  return std::ranges::find(names, name) != names.end();
}

// The variable of a request's flag, which lib/config reads. `outputs`: also of files that one
// request writes; the --output of a list is the verb's own.
std::string variable_of_field(const std::string& name, bool outputs) {
  bool is_known = kind_of_input(name).has_value();
  for (const Field& field : flag_fields(all_family_configs()))
    is_known |= has_long_name(field.flags, name) && (outputs || field.scope != Scope::output);
  for (const FlagGroup& group : all_flag_groups()) is_known |= has_long_name(group.flags, name);
  return is_known ? environment_name(name) : "";
}

// Names that other programs have for a flag of ours, and no family for one of its own.
bool is_alias(const std::string& name) {
  const std::vector<Field> fields = flag_fields(all_family_configs());
  const auto has = [&](std::string_view Field::*names) {
    return std::ranges::any_of(
        fields, [&](const Field& field) { return has_long_name(field.*names, name); });
  };
  if (has(&Field::flags)) return false;
  if (has(&Field::aliases)) return true;
  return std::ranges::any_of(all_flag_groups(), [&](const FlagGroup& group) {
    return has_long_name(group.aliases, name);
  });
}

std::string value_name(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  return type == "INT" || type == "UINT" ? "N" : type == "FLOAT" ? "X" : type;
}

// "pictures [1]": the default stands at the end of the help.
void split_default(Flag& flag) {
  const std::size_t open = flag.help.rfind(" [");
  if (!flag.help.ends_with(']') || open == std::string::npos) return;
  flag.preset = flag.help.substr(open + 2, flag.help.size() - open - 3);
  flag.help.resize(open);
}

Flag describe(const CLI::Option& option, bool of_request, bool outputs) {
  Flag flag;
  std::vector<std::string> names, aliases;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    std::vector<std::string>& kind = is_alias(name) ? aliases : names;
    kind.push_back("--" + name);
  }
  flag.aliases = fmt::format("{}", fmt::join(aliases, ", "));
  flag.names =
      option.get_positional() ? option.get_name() : fmt::format("{}", fmt::join(names, ", "));
  flag.value = option.get_positional() ? "" : value_name(option);
  flag.help = option.get_description();
  flag.preset = option.get_default_str();
  if (flag.preset.empty()) split_default(flag);
  flag.variable = option.get_envname();
  if (flag.variable.empty() && of_request && !option.get_lnames().empty())
    flag.variable = variable_of_field(option.get_lnames().front(), outputs);
  return flag;
}

std::string row_of(const Flag& flag) {
  const std::string name = flag.value.empty() ? flag.names : flag.names + " " + flag.value;
  return table_row(
      {code(name), code(flag.preset), code(flag.variable), flag.help, code(flag.aliases)});
}

std::vector<Flag> flags_of(const CLI::App& app, bool of_requests) {
  std::vector<Flag> flags;
  const bool outputs = app.get_name() == "generate";
  for (const CLI::Option* option : app.get_options()) {
    const bool is_hidden = option->get_group().empty();
    const bool is_help = option->check_lname("help") || option->check_lname("version");
    if (!is_hidden && !is_help) flags.push_back(describe(*option, of_requests, outputs));
  }
  return flags;
}

std::string table_of(const std::vector<Flag>& flags) {
  if (flags.empty()) return "It has no flags of its own.\n";
  std::string text = table_head({"flag", "default", "variable", "meaning", "also called"});
  for (const Flag& flag : flags) text += row_of(flag);
  return text;
}

bool takes_requests(const CLI::App& verb) {
  return verb.get_option_no_throw("--print-config") != nullptr;
}

std::string hints_table() {
  std::string text = table_head({"flag of another program", "here"});
  for (const FlagHint& hint : flag_hints()) {
    std::string names(hint.flags);
    for (std::size_t at = names.find(','); at != std::string::npos; at = names.find(',', at + 2))
      names.replace(at, 1, ", ");
    text += table_row({code(names), std::string(hint.text)});
  }
  return text;
}

// The flags that `generate` has as well are not repeated.
std::string own_table(const CLI::App& verb, const std::vector<Flag>& of_generate) {
  std::vector<Flag> own;
  std::vector<std::string> missing;
  const std::vector<Flag> flags = flags_of(verb, true);
  for (const Flag& flag : flags) {
    if (std::ranges::find(of_generate, flag) == of_generate.end()) own.push_back(flag);
  }
  for (const Flag& flag : of_generate) {
    if (std::ranges::find(flags, flag.names, &Flag::names) == flags.end())
      missing.push_back(code(flag.names));
  }
  return table_of(own) + fmt::format("\nIt also takes the flags of `generate`{}{}.\n",
                                     missing.empty() ? "" : " except ", fmt::join(missing, ", "));
}

}  // namespace

void add_flag_parts(const CLI::App& app, Parts& parts) {
  const std::vector<Flag> of_generate = flags_of(*app.get_subcommand("generate"), true);
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_group().empty()) continue;
    const bool extends = verb->get_name() != "generate" && takes_requests(*verb);
    parts["flags " + verb->get_name()] = [=] {
      return extends ? own_table(*verb, of_generate)
                     : table_of(flags_of(*verb, takes_requests(*verb)));
    };
  }
  parts["flags of other programs"] = hints_table;
  parts["flags of all verbs"] = [&app] { return table_of(flags_of(app, false)); };
  parts["verbs"] = [&app] {
    std::string text = table_head({"verb", "what it does"});
    for (const CLI::App* verb : app.get_subcommands({})) {
      if (verb->get_group().empty()) continue;
      text += table_row({fmt::format("[`{0}`](#{0})", verb->get_name()), verb->get_description()});
    }
    return text;
  };
}

}  // namespace diptych::docs

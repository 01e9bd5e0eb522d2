// The commands whose answers the build notes down.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "apps/diptych/answers.h"
#include "apps/diptych/command_line.h"
#include "apps/diptych/verbs.h"

namespace diptych {
namespace {

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

}  // namespace

FixedRequests fixed_requests() {
  CLI::App app;
  SharedFlags shared;
  Run run;
  build_command_line(app, shared, run);
  FixedRequests fixed;
  const auto add = [&](std::vector<std::string> words) {
    fixed.arguments.push_back(std::move(words));
  };
  const std::vector<std::string> help = names_of(*app.get_help_ptr());
  for (const std::string& name : help) add({name});
  for (const std::string& name : names_of(*app.get_version_ptr())) add({name});
  const auto verbs = app.get_subcommands({});
  const bool has_help_verb =
      std::ranges::any_of(verbs, [](const CLI::App* verb) { return verb->get_name() == "help"; });
  if (has_help_verb) add({"help"});
  for (const CLI::App* verb : verbs) {
    for (const std::string& name : help) add({verb->get_name(), name});
    if (has_help_verb) add({"help", verb->get_name()});
  }
  add({"version"});
  if (app.get_subcommand("version")->get_option_no_throw("--json") != nullptr)
    add({"version", "--json"});
  for (const char* shell : {"bash", "zsh", "fish"}) add({"completion", shell});
  for (const CLI::App* of : std::array<const CLI::App*, 2>{&app, app.get_subcommand("version")}) {
    for (const CLI::Option* option : of->get_options()) {
      if (!option->get_envname().empty()) fixed.variables.push_back(option->get_envname());
    }
  }
  return fixed;
}

}  // namespace diptych

// `diptych completion SHELL`: a completion script, made from the parser itself.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

constexpr std::array<std::string_view, 3> kShells = {"bash", "zsh", "fish"};

struct Flag {
  std::vector<std::string> names;    // "-s", "--seed"
  std::vector<std::string> choices;  // of its value, where it has a list
  std::string help;
  bool takes_value = false;
};

struct Verb {
  std::string name, help;
  std::vector<Flag> flags;
};

// "batched|sequential" -> both; a type name such as FILE has none.
std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> choices;
  const std::string type = option.get_type_name();
  if (type.find('|') == std::string::npos) return choices;
  for (std::size_t begin = 0; begin <= type.size();) {
    const std::size_t end = std::min(type.find('|', begin), type.size());
    choices.push_back(type.substr(begin, end - begin));
    begin = end + 1;
  }
  return choices;
}

void add_flags(const CLI::App& app, std::vector<Flag>& flags) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) continue;
    Flag flag;
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    flag.choices = choices_of(*option);
    flag.help = option->get_description();
    flag.takes_value = option->get_items_expected_max() > 0;
    flags.push_back(std::move(flag));
  }
}

std::vector<Verb> verbs_of(const CLI::App& app) {
  std::vector<Verb> verbs;
  for (const CLI::App* each : app.get_subcommands({})) {
    Verb verb{each->get_name(), each->get_description(), {}};
    add_flags(*each, verb.flags);
    add_flags(app, verb.flags);  // the shared ones
    verbs.push_back(std::move(verb));
  }
  return verbs;
}

std::vector<std::string> names_of(const std::vector<Verb>& verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.push_back(verb.name);
  return names;
}

// Within '...' of a shell, and without the characters that _arguments gives a meaning.
std::string plain_words(std::string_view text) {
  std::string plain;
  for (const char letter : text) {
    plain += std::string_view("'\"[]:\\`$\n").find(letter) == std::string_view::npos ? letter : ' ';
  }
  return plain;
}

std::string bash_script(const std::vector<Verb>& verbs) {
  std::string script =
      "# diptych completion for bash: source <(diptych completion bash)\n"
      "_diptych() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} "
      "verb=${COMP_WORDS[1]}\n"
      "  COMPREPLY=()\n"
      "  if ((COMP_CWORD == 1)); then\n";
  script += fmt::format("    COMPREPLY=($(compgen -W '{} --help --version' -- \"$word\"))\n",
                        fmt::join(names_of(verbs), " "));
  script += "    return\n  fi\n  case \"$verb $before\" in\n";
  for (const Verb& verb : verbs) {
    for (const Flag& flag : verb.flags) {
      if (!flag.takes_value) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : flag.names) {
        patterns.push_back(fmt::format("'{} {}'", verb.name, name));
      }
      const std::string reply = flag.choices.empty() ? "compgen -f -- \"$word\""
                                                     : fmt::format("compgen -W '{}' -- \"$word\"",
                                                                   fmt::join(flag.choices, " "));
      script +=
          fmt::format("    {}) COMPREPLY=($({})); return;;\n", fmt::join(patterns, "|"), reply);
    }
  }
  script += "  esac\n  case \"$verb\" in\n";
  for (const Verb& verb : verbs) {
    std::vector<std::string> names;
    for (const Flag& flag : verb.flags) {
      names.insert(names.end(), flag.names.begin(), flag.names.end());
    }
    script += fmt::format(
        "    {}) [[ $word == -* ]] && COMPREPLY=($(compgen -W '{}' -- \"$word\")) || "
        "COMPREPLY=($(compgen -f -- \"$word\"));;\n",
        verb.name, fmt::join(names, " "));
  }
  return script + "  esac\n}\ncomplete -o filenames -F _diptych diptych\n";
}

std::string zsh_script(const std::vector<Verb>& verbs) {
  std::string script =
      "#compdef diptych\n# diptych completion for zsh: source it, or save it as _diptych in a "
      "folder of $fpath\n"
      "_diptych() {\n  if ((CURRENT == 2)); then\n    local -a verbs=(\n";
  for (const Verb& verb : verbs) {
    script += fmt::format("      '{}:{}'\n", verb.name, plain_words(verb.help));
  }
  script += "    )\n    _describe verb verbs\n    return\n  fi\n  local verb=$words[2]\n";
  script += "  shift words\n  ((CURRENT--))\n  case $verb in\n";
  for (const Verb& verb : verbs) {
    script += fmt::format("    {}) _arguments \\\n", verb.name);
    for (const Flag& flag : verb.flags) {
      const std::string value = !flag.takes_value ? ""
                                : flag.choices.empty()
                                    ? ":value:_files"
                                    : fmt::format(":value:({})", fmt::join(flag.choices, " "));
      for (const std::string& name : flag.names) {
        script += fmt::format("      '*{}[{}]{}' \\\n", name, plain_words(flag.help), value);
      }
    }
    script += "      '*:file:_files';;\n";
  }
  // A file of $fpath is run as the function itself; sourced, it only defines and registers it.
  return script +
         "  esac\n}\nif [ \"$funcstack[1]\" = _diptych ]; then _diptych \"$@\"; else compdef "
         "_diptych "
         "diptych; fi\n";
}

std::string fish_script(const std::vector<Verb>& verbs) {
  std::string script = "# diptych completion for fish: diptych completion fish | source\n";
  for (const Verb& verb : verbs) {
    script += fmt::format("complete -c diptych -f -n __fish_use_subcommand -a {} -d '{}'\n",
                          verb.name, plain_words(verb.help));
  }
  for (const Verb& verb : verbs) {
    for (const Flag& flag : verb.flags) {
      script += fmt::format("complete -c diptych -n '__fish_seen_subcommand_from {}'", verb.name);
      for (const std::string& name : flag.names) {
        script += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (flag.takes_value) script += " -r";
      if (!flag.choices.empty()) script += fmt::format(" -f -a '{}'", fmt::join(flag.choices, " "));
      script += fmt::format(" -d '{}'\n", plain_words(flag.help));
    }
  }
  return script;
}

}  // namespace

void add_completion(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("completion", "print a completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  verb->add_option("shell", *shell, "bash, zsh or fish")->required();
  verb->footer("Example:\n  source <(diptych completion bash)");
  verb->callback([shell, &app, &run] {
    run = [shell, &app](Log&) {
      if (std::ranges::find(kShells, *shell) == kShells.end())
        throw InputError("completion: unknown shell {}{}", in_quotes(*shell),
                         suggestion(*shell, kShells));
      const auto verbs = verbs_of(app);
      fmt::print("{}", *shell == "bash"  ? bash_script(verbs)
                       : *shell == "zsh" ? zsh_script(verbs)
                                         : fish_script(verbs));
      return 0;
    };
  });
}

}  // namespace diptych

// `diptych completion SHELL`: a completion script, made from the parser itself.
#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
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
  std::vector<Flag> flags;           // the shared ones, too
  std::vector<std::string> choices;  // of what stands behind it, "bash" of completion
};

struct Program {
  std::vector<Verb> verbs;
  std::vector<Flag> flags;  // that may stand before a verb
};

// Not what stands for a value, as "N" and "cuda:N" do.
bool is_literal(std::string_view word) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
  return !word.empty() && word.find_first_not_of(kLetters) == std::string_view::npos;
}

// "batched|sequential" -> both; a type name such as FILE has none.
std::vector<std::string> choices_of(const CLI::Option& option) {
  std::vector<std::string> choices;
  const std::string type = option.get_type_name();
  if (type.find('|') == std::string::npos) return choices;
  for (std::size_t begin = 0; begin <= type.size();) {
    const std::size_t end = std::min(type.find('|', begin), type.size());
    if (std::string word = type.substr(begin, end - begin); is_literal(word))
      choices.push_back(std::move(word));
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

Program describe(const CLI::App& app) {
  Program program;
  add_flags(app, program.flags);
  for (const CLI::App* each : app.get_subcommands({})) {
    Verb verb{each->get_name(), each->get_description(), {}, {}};
    add_flags(*each, verb.flags);
    verb.flags.insert(verb.flags.end(), program.flags.begin(), program.flags.end());
    for (const CLI::Option* option : each->get_options()) {
      if (option->get_positional()) verb.choices = choices_of(*option);
    }
    program.verbs.push_back(std::move(verb));
  }
  return program;
}

std::vector<std::string> names_of(const std::vector<Verb>& verbs) {
  std::vector<std::string> names;
  for (const Verb& verb : verbs) names.push_back(verb.name);
  return names;
}

std::vector<std::string> names_of(const std::vector<Flag>& flags) {
  std::vector<std::string> names;
  for (const Flag& flag : flags) names.insert(names.end(), flag.names.begin(), flag.names.end());
  return names;
}

// Those in front of a verb whose next word is a value, "--log-level".
std::vector<std::string> with_values(const std::vector<Flag>& flags) {
  std::vector<Flag> taking;
  std::ranges::copy_if(flags, std::back_inserter(taking), &Flag::takes_value);
  return names_of(taking);
}

// Within '...' of a shell, and without the characters that _arguments gives a meaning.
std::string plain_words(std::string_view text) {
  std::string plain;
  for (const char letter : text) {
    plain += std::string_view("'\"[]:\\`$\n").find(letter) == std::string_view::npos ? letter : ' ';
  }
  return plain;
}

// Offers these words, or files where there are none; one line is one of them, whatever blanks are
// in it.
std::string bash_reply(const std::vector<std::string>& words) {
  const std::string of =
      words.empty() ? std::string("-f") : fmt::format("-W '{}'", fmt::join(words, " "));
  // Files are escaped, and folders end in "/"; a word that is also a folder's name does not.
  const char* kind = words.empty() ? "compopt -o filenames 2> /dev/null; " : "";
  return kind + fmt::format("mapfile -t COMPREPLY < <(compgen -P \"$prefix\" {} -- \"$word\")", of);
}

// One line of a case: the values of a flag, by "VERB FLAG".
std::string bash_values(const std::string& verb, const std::vector<Flag>& flags) {
  std::string lines;
  for (const Flag& flag : flags) {
    if (!flag.takes_value) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : flag.names)
      patterns.push_back(fmt::format("'{} {}'", verb, name));
    lines +=
        fmt::format("    {}) {}; return;;\n", fmt::join(patterns, "|"), bash_reply(flag.choices));
  }
  return lines;
}

std::string bash_script(const Program& program) {
  std::string script =
      "# diptych completion for bash: source <(diptych completion bash)\n"
      "_diptych() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} prefix= verb= i\n"
      "  COMPREPLY=()\n"
      // "=" is a word of its own, or not: COMP_WORDBREAKS.
      "  if [[ $word == '=' ]]; then word=\n"
      "  elif [[ $before == '=' ]]; then before=${COMP_WORDS[COMP_CWORD-2]}\n"
      "  elif [[ $word == --*=* ]]; then before=${word%%=*} prefix=${word%%=*}= word=${word#*=}\n"
      "  fi\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n";
  script += fmt::format("      {}) [[ ${{COMP_WORDS[i+1]}} == '=' ]] && ((i++)); ((i++));;\n",
                        fmt::join(with_values(program.flags), "|"));
  script +=
      "      -*|=) ;;\n"
      "      *) verb=${COMP_WORDS[i]}; break;;\n"
      "    esac\n"
      "  done\n"
      "  case \"$verb $before\" in\n";
  script += bash_values("", program.flags);
  for (const Verb& verb : program.verbs) script += bash_values(verb.name, verb.flags);
  script += "  esac\n  case \"$verb\" in\n";
  std::vector<std::string> first = names_of(program.verbs), shared = names_of(program.flags);
  script += fmt::format("    '') if [[ $word == -* ]]; then {}; else {}; fi;;\n",
                        bash_reply(shared), bash_reply(first));
  for (const Verb& verb : program.verbs) {
    script += fmt::format("    {}) if [[ $word == -* ]]; then {}; else {}; fi;;\n", verb.name,
                          bash_reply(names_of(verb.flags)), bash_reply(verb.choices));
  }
  return script + "  esac\n}\ncomplete -F _diptych diptych\n";
}

// The arguments of _arguments, one a line; "=" and "+": the value may follow in the same word.
std::string zsh_flags(const std::vector<Flag>& flags) {
  std::string lines;
  for (const Flag& flag : flags) {
    const std::string value = !flag.takes_value ? ""
                              : flag.choices.empty()
                                  ? ":value:_files"
                                  : fmt::format(":value:({})", fmt::join(flag.choices, " "));
    for (const std::string& name : flag.names) {
      const char* joint = !flag.takes_value ? "" : name.starts_with("--") ? "=" : "+";
      lines += fmt::format("      '*{}{}[{}]{}' \\\n", name, joint, plain_words(flag.help), value);
    }
  }
  return lines;
}

std::string zsh_script(const Program& program) {
  std::string script =
      "#compdef diptych\n# diptych completion for zsh: source it, or save it as _diptych in a "
      "folder of $fpath\n"
      "_diptych() {\n"
      "  local verb=\n"
      "  local -i i=2\n"
      "  while ((i < CURRENT)); do\n"
      "    case $words[i] in\n";
  script += fmt::format("      {}) ((i++));;\n", fmt::join(with_values(program.flags), "|"));
  script +=
      "      -*) ;;\n"
      "      *) verb=$words[i]; break;;\n"
      "    esac\n"
      "    ((i++))\n"
      "  done\n"
      "  if [[ -z $verb ]]; then\n"
      "    local -a verbs=(\n";
  for (const Verb& verb : program.verbs)
    script += fmt::format("      '{}:{}'\n", verb.name, plain_words(verb.help));
  script += "    )\n    _arguments \\\n" + zsh_flags(program.flags) +
            "      '*::verb:{_describe verb verbs}'\n"
            "    return\n  fi\n"
            "  words=(\"${(@)words[i,-1]}\")\n  ((CURRENT -= i - 1))\n  case $verb in\n";
  for (const Verb& verb : program.verbs) {
    script += fmt::format("    {}) _arguments \\\n", verb.name) + zsh_flags(verb.flags);
    script += verb.choices.empty()
                  ? "      '*:file:_files';;\n"
                  : fmt::format("      '*:choice:({})';;\n", fmt::join(verb.choices, " "));
  }
  // A file of $fpath is run as the function itself; sourced, it only defines and registers it.
  return script +
         "  esac\n}\nif [ \"$funcstack[1]\" = _diptych ]; then _diptych \"$@\"; else compdef "
         "_diptych "
         "diptych; fi\n";
}

std::string fish_flags(const std::string& condition, const std::vector<Flag>& flags) {
  std::string lines;
  for (const Flag& flag : flags) {
    lines += fmt::format("complete -c diptych -n '{}'", condition);
    for (const std::string& name : flag.names)
      lines += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    if (flag.takes_value) lines += " -r";
    if (!flag.choices.empty()) lines += fmt::format(" -f -a '{}'", fmt::join(flag.choices, " "));
    lines += fmt::format(" -d '{}'\n", plain_words(flag.help));
  }
  return lines;
}

std::string fish_script(const Program& program) {
  std::string script = "# diptych completion for fish: diptych completion fish | source\n";
  // __fish_use_subcommand would take the value of a flag for a verb.
  const std::string none =
      fmt::format("not __fish_seen_subcommand_from {}", fmt::join(names_of(program.verbs), " "));
  for (const Verb& verb : program.verbs) {
    script += fmt::format("complete -c diptych -f -n '{}' -a {} -d '{}'\n", none, verb.name,
                          plain_words(verb.help));
  }
  script += fish_flags(none, program.flags);
  for (const Verb& verb : program.verbs) {
    const std::string chosen = fmt::format("__fish_seen_subcommand_from {}", verb.name);
    script += fish_flags(chosen, verb.flags);
    if (!verb.choices.empty()) {
      script += fmt::format("complete -c diptych -f -n '{}' -a '{}'\n", chosen,
                            fmt::join(verb.choices, " "));
    }
  }
  return script;
}

}  // namespace

void add_completion(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("completion", "print a completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  verb->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->type_name(fmt::format("{}", fmt::join(kShells, "|")));
  verb->footer("Example:\n  source <(diptych completion bash)");
  verb->callback([shell, &app, &run] {
    run = [shell, &app](Log&) {
      if (std::ranges::find(kShells, *shell) == kShells.end())
        throw InputError("completion: unknown shell {}{}", in_quotes(*shell),
                         suggestion(*shell, kShells));
      const Program program = describe(app);
      fmt::print("{}", *shell == "bash"  ? bash_script(program)
                       : *shell == "zsh" ? zsh_script(program)
                                         : fish_script(program));
      return 0;
    };
  });
}

}  // namespace diptych

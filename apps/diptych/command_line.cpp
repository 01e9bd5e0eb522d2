#include "apps/diptych/command_line.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "lib/base/error.h"
#include "lib/config/flag_hints.h"
#include "lib/config/words.h"
#include "lib/pipelines/registry.h"

namespace diptych {
namespace {

constexpr std::array<std::string_view, 5> kLevels = {"quiet", "error", "warning", "info", "debug"};

const CLI::App& chosen(const CLI::App& app) {
  const auto verbs = app.get_subcommands();
  return verbs.empty() ? app : *verbs.front();
}

std::string command_of(const CLI::App& app) {
  const CLI::App& verb = chosen(app);
  return &verb == &app ? std::string() : verb.get_name() + ": ";
}

// The option whose name the text begins with.
const CLI::Option* option_in_front(const CLI::App& app, std::string_view text) {
  const CLI::Option* found = nullptr;
  for (const CLI::App* each : {&chosen(app), &app}) {
    for (const CLI::Option* option : each->get_options()) {
      const std::string name = option->get_name();
      const bool longer = found == nullptr || name.size() > found->get_name().size();
      if (text.starts_with(name) && longer) found = option;
    }
  }
  return found;
}

std::string expected_value(const CLI::Option& option) {
  if (option.get_positional()) return option.get_description();
  const std::string type = option.get_type_name();
  if (type == "INT" || type == "UINT") return "a whole number";
  if (type == "FLOAT") return "a number";
  return type.empty() ? "true or false" : type;
}

// What the setting of this label is called where it was given.
std::string place_of(const CLI::App& app, const std::string& label) {
  const CLI::Option* option =
      label.starts_with("--") ? chosen(app).get_option_no_throw(label) : nullptr;
  if (option == nullptr) option = app.get_option_no_throw(label);
  return option == nullptr ? label : given_name(app, *option);
}

// The text behind the last `word`, or nothing.
std::string behind(const std::string& text, std::string_view word) {
  const std::size_t at = text.rfind(word);
  return at == std::string::npos ? "" : text.substr(at + word.size());
}

// What CLI11 says (CLI/Error.hpp, 2.1 to 2.5), as our other messages say it: flag, found, expected.
// A text of another form stays as it is.
std::string in_our_words(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what(), kind = error.get_name();
  const std::string value_text = behind(text, "Could not convert: ");
  const CLI::Option* option = option_in_front(app, value_text.empty() ? text : value_text);
  if (option == nullptr) return text;
  const std::string name = given_name(app, *option), expected = expected_value(*option);
  if (!value_text.empty()) {
    return fmt::format("{}: {} could not be read; expected {}", name,
                       in_quotes(behind(value_text, " = ")), expected);
  }
  if (kind == "RequiredError") return fmt::format("{}: not given; expected {}", name, expected);
  if (kind == "RequiresError")
    return fmt::format("{}: given without {}", name, behind(text, " requires "));
  if (kind == "ExcludesError") {
    return fmt::format("{}: given together with {}; expected one of them", name,
                       behind(text, " excludes "));
  }
  const std::string times = behind(text, "At Most 1 required but received ");
  if (kind == "ArgumentMismatch" && !times.empty())
    return fmt::format("{}: given {} times; expected once", name, times);
  if (kind == "ArgumentMismatch" && text.ends_with(" missing"))
    return fmt::format("{}: given without a value; expected {}", name, expected);
  const std::string& flag = option->get_name();
  return text.starts_with(flag) ? name + text.substr(flag.size()) : text;
}

// CLI11 counts with the value of a flag: --quiet=5 would be as good as --quiet.
std::string truth_problem(const std::string& text) {
  static constexpr std::array<std::string_view, 8> kWords = {"true",  "on",  "yes", "1",
                                                             "false", "off", "no",  "0"};
  return std::ranges::find(kWords, text) != kWords.end()
             ? ""
             : in_quotes(text) + " could not be read; expected true or false";
}

// Switches of requests are texts (TakeAll), which lib/config reads.
void check_truths(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const bool is_flag = option->get_items_expected_max() == 0 && option != app.get_help_ptr();
    if (is_flag && option->get_multi_option_policy() != CLI::MultiOptionPolicy::TakeAll)
      option->check(truth_problem, "");
  }
}

// What to do about a flag that nobody took; "" where nothing is known of it.
std::string known_hint(const CLI::App& app, const std::string& flag) {
  const auto families = all_family_configs();
  std::string hint = flag_hint(flag, families);
  const bool is_short = !flag.starts_with("--");
  if (hint.empty() && is_short) hint = flag_hint(flag.substr(0, 2), families);  // "-t8"
  if (!hint.empty()) return hint;
  const bool any_verb = &chosen(app) == &app;
  const auto asked = [&](const CLI::App* verb) { return any_verb || verb->parsed(); };
  for (const CLI::App* verb : app.get_subcommands(asked)) {
    if (verb->get_option_no_throw(flag) != nullptr)
      return fmt::format("it stands behind the verb: diptych {} {}", verb->get_name(), flag);
  }
  return {};
}

// A video from a text, else from a picture; "" where the family makes none of these.
std::string video_example(const FamilyConfig& family) {
  const Task* of_text = family.task_for({}, MediaKind::clip);
  const Task* task =
      of_text == nullptr ? family.task_for({.pictures = 1}, MediaKind::clip) : of_text;
  if (task == nullptr) return "";
  return fmt::format(
      "  diptych generate -m {} --task {}{} -p \"a boat at sea\" --video-frames 49 -o boat.mp4\n",
      family.released_film.empty() ? family.released_model : family.released_film, task->name,
      task == of_text ? "" : " -i boat.png");
}

// Examples name a released model: "{model}" is its checkpoint's folder, "{family}" its family, and
// "{videos}" stands for an example of each family that makes videos; "{text model}" is the folder
// of one that writes texts alone and drafts them.
std::string fill_in_examples(std::string footer) {
  const auto families = all_family_configs();
  const FamilyConfig& family = *families.front();
  std::string videos;
  for (const FamilyConfig* each : families) videos += video_example(*each);
  const auto drafts = [](const FamilyConfig* each) {
    return each->drafting.has_value() && !each->makes(MediaKind::picture);
  };
  const FamilyConfig& of_texts = **std::ranges::find_if(families, drafts);
  const std::array<std::pair<std::string_view, std::string_view>, 4> names = {
      {{"{model}", family.released_model},
       {"{family}", family.name},
       {"{videos}", videos},
       {"{text model}", of_texts.released_model}}};
  for (const auto& [mark, name] : names) {
    for (std::size_t at = footer.find(mark); at != std::string::npos; at = footer.find(mark, at))
      footer.replace(at, mark.size(), name);
  }
  return footer;
}

// "steps" where -steps was written, which the parser takes for -s teps; else "".
std::string long_name_with_one_dash(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& letter : option->get_snames()) {
      for (const std::string& value : option->results()) {
        if (verb.get_option_no_throw("--" + letter + value) != nullptr) return letter + value;
      }
    }
  }
  return "";
}

}  // namespace

LogLevel chosen_level(const CLI::App& app, const SharedFlags& shared) {
  const auto named = std::ranges::find(kLevels, shared.log_level);
  if (named == kLevels.end()) {
    throw InputError(Setting::of("log_level"), "unknown value {}{}", in_quotes(shared.log_level),
                     suggestion(shared.log_level, kLevels));
  }
  struct Wish {
    const char* flag;
    bool given;
    LogLevel level;
  };
  const std::array<Wish, 3> wishes = {
      Wish{"--log-level", app.get_option("--log-level")->count() > 0,
           static_cast<LogLevel>(named - kLevels.begin())},
      Wish{"--verbose", shared.verbose, LogLevel::debug},
      Wish{"--quiet", shared.quiet, LogLevel::error}};
  for (const bool by_flag : {true, false}) {
    std::vector<const Wish*> given;
    for (const Wish& wish : wishes) {
      if (wish.given && on_command_line(app, app.get_option(wish.flag)) == by_flag)
        given.push_back(&wish);
    }
    const auto name = [&](const Wish& wish) { return given_name(app, *app.get_option(wish.flag)); };
    if (given.size() > 1) {
      throw InputError("{}: given together with {}; expected one", name(*given[0]),
                       name(*given[1]));
    }
    if (!given.empty()) return given.front()->level;
  }
  return LogLevel::info;
}

void build_command_line(CLI::App& app, SharedFlags& shared, Run& run) {
  app.name("diptych");
  app.description("Pictures, videos, edits and answers with unified models, from one binary.");
  app.formatter(help_format());
  app.fallthrough();             // the shared flags may follow the verb
  app.require_subcommand(0, 1);  // another verb's name is an argument like others
  app.set_version_flag("-V,--version", "diptych " DIPTYCH_VERSION);
  app.add_option("--log-level", shared.log_level, "what to say on stderr")
      ->type_name("quiet|error|warning|info|debug")
      ->envname("DIPTYCH_LOG_LEVEL");
  app.add_flag("-v,--verbose", shared.verbose, "the same as --log-level debug")
      ->envname("DIPTYCH_VERBOSE");
  app.add_flag("-q,--quiet", shared.quiet, "the same as --log-level error")
      ->envname("DIPTYCH_QUIET");
  add_generate(app, run);
  add_batch(app, run);
  add_bench(app, run);
  add_calibrate(app, run);
  add_tune(app, run);
  add_verify(app, run);
  add_check(app, run);
  add_compare(app, run);
  add_inspect(app, run);
  add_devices(app, run);
  add_version(app, run);
  add_completion(app, run);
  add_help(app, run);
  check_truths(app);
  for (CLI::App* verb : app.get_subcommands({})) {
    // Else CLI11 reads the variables of every verb, and refuses some, whichever verb was chosen.
    verb->immediate_callback();
    check_truths(*verb);
    verb->footer(fill_in_examples(verb->get_footer()));
  }
  app.footer(
      "Each verb has its own help with examples: diptych help generate, or generate --help\n"
      "Every flag of a request can also be set by an environment variable: DIPTYCH_CFG_MODE is\n"
      "--cfg-mode. Other flags show theirs as (Env:NAME). A flag wins over its variable.\n"
      "; separates several values in the variable of a repeatable flag, and also in "
      "--trace-filter,\n"
      "--probe and --tolerance. A prompt is taken as it is.\n"
      "Results go to stdout, everything else to stderr. Exit codes: 0 done; 1 a check failed;\n"
      "2 wrong flag, config or input file; 3 failure of the machine; 4 some items of a batch "
      "failed;\n"
      "129, 130, 143 stopped by a signal; 141 nobody reads stdout any more.");
}

std::vector<std::string> reversed_arguments(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    std::string argument = argv[i];
    const bool empty_value =
        argument.starts_with("--") && argument.find('=') == argument.size() - 1;
    if (empty_value) {
      argument.pop_back();
      arguments.emplace_back();
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

std::string describe_unknown_argument(const CLI::App& app) {
  const CLI::App& verb = chosen(app);
  if (const std::string name = &verb == &app ? "" : long_name_with_one_dash(verb); !name.empty()) {
    return fmt::format("{}unknown flag '-{}' (did you mean --{}? see diptych {} --help)",
                       command_of(app), name, name, verb.get_name());
  }
  const std::vector<std::string> rest = app.remaining(true);
  const std::string whole = rest.empty() ? "" : rest.front();
  const std::string argument = whole.substr(0, whole.find('='));
  std::vector<std::string> names;
  const bool is_flag = argument.starts_with("-");
  if (is_flag) {
    for (const CLI::App* each : {&verb, &app}) {
      for (const CLI::Option* option : each->get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      }
    }
  } else if (&verb == &app) {
    for (const CLI::App* each : app.get_subcommands({})) names.push_back(each->get_name());
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  if (!is_flag && &verb == &app) {
    return fmt::format("unknown verb {}{}; see diptych --help", in_quotes(argument),
                       suggestion(argument, known));
  }
  if (const std::string known_of = is_flag ? known_hint(app, argument) : ""; !known_of.empty())
    return fmt::format("{}unknown flag {}: {}", command_of(app), in_quotes(argument), known_of);
  const std::string_view near = nearest_word(argument, known);
  const std::string hint = whole.empty()  ? "an empty text, or --NAME= of a flag without a value; "
                           : near.empty() ? ""
                                          : fmt::format("did you mean {}? ", near);
  return fmt::format("{}unknown {} {} ({}see diptych {}--help)", command_of(app),
                     is_flag ? "flag" : "argument", in_quotes(argument.empty() ? whole : argument),
                     hint, &verb == &app ? "" : verb.get_name() + " ");
}

bool on_command_line(const CLI::App& app, const CLI::Option* option) {
  return std::ranges::any_of(std::array{&chosen(app), &app}, [&](const CLI::App* each) {
    const auto given = each->parse_order();
    return std::ranges::find(given, option) != given.end();
  });
}

std::string given_name(const CLI::App& app, const CLI::Option& option) {
  const bool by_variable =
      !option.get_envname().empty() && option.count() > 0 && !on_command_line(app, &option);
  return by_variable ? option.get_envname() : option.get_name();
}

std::string error_text(const CLI::App& app, const InputError& error) {
  const SettingProblem* problem = error.problem();
  if (problem == nullptr) return error.what();
  SettingProblem placed = *problem;
  for (auto& part : placed.text) {
    if (Setting* other = std::get_if<Setting>(&part)) other->label = place_of(app, other->label);
  }
  return problem_text(placed, {place_of(app, problem->setting.label)});
}

std::string describe_parse_error(const CLI::App& app, const CLI::ParseError& error) {
  // A misspelt flag is why another one is missing.
  if (app.remaining_size(true) > 0) return describe_unknown_argument(app);
  return command_of(app) + in_our_words(app, error);
}

}  // namespace diptych

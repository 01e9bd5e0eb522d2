#include "apps/diptych/compare/settings.h"

#include <algorithm>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/diptych/command_line.h"
#include "lib/base/error.h"
#include "lib/config/family_fields.h"
#include "lib/config/words.h"
#include "lib/pipelines/registry.h"

namespace diptych {
namespace {

bool is_one_of(Scope scope, std::initializer_list<Scope> scopes) {
  return std::ranges::find(scopes, scope) != scopes.end();
}

constexpr std::string_view kNoSettings[] = {"--prompt", "--prompt-file", "--image", "--video",
                                            "--print-config"};

[[noreturn]] void refuse_setting(const std::string& flag, std::string_view name) {
  throw InputError(
      "{}: {}: must not differ between the two; expected a flag that changes how a "
      "request is run",
      flag, name);
}

// The flags of fields that are no settings.
void refuse_other_fields(const std::string& flag, const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  for (const Field& field : flag_fields(all_family_configs())) {
    if (is_setting(field) || field.flags.empty()) continue;
    const auto names = CLI::detail::split_names(std::string(field.flags));
    if (std::ranges::find(names, name) != names.end()) refuse_setting(flag, name);
  }
}

[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& flag) {
  const std::string word = app.remaining().front();
  if (!word.starts_with('-')) {
    throw InputError("{}: {} is no flag; expected some of `generate`, such as --cfg-mode batched",
                     flag, in_quotes(word));
  }
  refuse_other_fields(flag, word);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::string_view near = nearest_word(word, known);
  throw InputError("{}: unknown flag {}{}", flag, in_quotes(word),
                   near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

void parse_words(CLI::App& app, const std::string& flag, std::vector<std::string> words) {
  std::vector<char*> argv = {const_cast<char*>("")};
  for (std::string& word : words) argv.push_back(word.data());
  try {
    app.parse(reversed_arguments(static_cast<int>(argv.size()), argv.data()));
  } catch (const CLI::ExtrasError&) {
    refuse_unknown(app, flag);
  } catch (const CLI::ParseError& error) {
    if (app.remaining_size() > 0) refuse_unknown(app, flag);
    throw InputError("{}: {}", flag, describe_parse_error(app, error));
  }
}

bool sets(const RequestFlags& flags, const std::string& name) {
  const auto texts = flags.values.find(name);
  return texts != flags.values.end() && !texts->second.empty();
}

// "stages.1.devices" of --set stages.1.devices=cpu.
std::string key_of(const std::string& edit) {
  return edit.substr(0, edit.find('='));
}

bool edits(const RequestFlags& flags, const std::string& key) {
  return std::ranges::find(flags.overrides, key, key_of) != flags.overrides.end();
}

[[noreturn]] void refuse_idle(const std::string& name) {
  throw InputError("{}: has no effect: --a and --b both set it; expected it there alone", name);
}

}  // namespace

bool is_setting(const Field& field) {
  using enum Scope;
  return !is_one_of(field.scope, {display, request, report, output});
}

bool is_of_both_sides(const Field& field) {
  if (field.flags.starts_with("-b,")) return false;  // newer CLI11 takes -b for --b
  return !is_one_of(field.scope, {Scope::report, Scope::output, Scope::parallel});
}

std::vector<std::string> split_words(const std::string& text, std::string_view where) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool blank = c == ' ' || c == '\t' || c == '\n';
    if (quote == 0 && blank) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      words.back() += text[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote != 0)
    throw InputError("{}: {} has no end; expected another {}", where, in_quotes(text), quote);
  return words;
}

RequestFlags SideSettings::over(const RequestFlags& both) const {
  RequestFlags merged = both;
  for (const auto& [flags, texts] : given.values) {
    if (!texts.empty()) merged.values[flags] = texts;
  }
  if (!given.negative_file.empty()) merged.negative_file = given.negative_file;
  merged.overrides.insert(merged.overrides.end(), given.overrides.begin(), given.overrides.end());
  return merged;
}

std::vector<std::string> SideSettings::labels() const {
  std::vector<std::string> labels;
  for (const auto& [flags, texts] : given.values) {
    if (!texts.empty()) labels.push_back(flag_label(flags));
  }
  if (!given.overrides.empty()) labels.emplace_back("--set");
  return labels;
}

SideSettings read_settings(const std::string& flag, const std::string& text) {
  SideSettings settings;
  settings.flag = flag;
  const std::vector<std::string> words = split_words(text, flag);
  if (words.empty()) return settings;
  CLI::App app;
  app.set_help_flag();
  add_request_flags(app, settings.given, is_setting);
  parse_words(app, flag, words);
  for (const CLI::Option* option : app.parse_order()) {
    const std::string& name = option->get_name();
    if (std::ranges::find(kNoSettings, name) != std::end(kNoSettings)) refuse_setting(flag, name);
  }
  about(flag, [&] { read_request_inputs(app, settings.given); });  // -n 2
  return settings;
}

void refuse_idle_flags(const RequestFlags& both, const SideSettings& a, const SideSettings& b) {
  for (const auto& [name, texts] : both.values) {
    if (!texts.empty() && sets(a.given, name) && sets(b.given, name))
      refuse_idle(std::string(flag_label(name)));
  }
  for (const std::string& edit : both.overrides) {
    const std::string key = key_of(edit);
    if (edits(a.given, key) && edits(b.given, key)) refuse_idle("--set " + key);
  }
}

}  // namespace diptych

#include "apps/diptych/request_flags.h"

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/diptych/flag_help.h"
#include "apps/diptych/prompt_files.h"
#include "lib/base/error.h"
#include "lib/base/picture_formats.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/registry.h"

namespace diptych {
namespace {

// "--think", or "--think=false" against a variable or a stage config.
void add_switch(CLI::App& verb, std::string_view flags, const std::string& help,
                std::vector<std::string>& texts) {
  verb.add_flag(std::string(flags), texts, help);
}

bool any_family_reads(MediaKind kind) {
  return std::ranges::any_of(all_family_configs(),
                             [&](const FamilyConfig* family) { return family->reads(kind); });
}

void add_inputs(CLI::App& verb) {
  const auto add = [&](std::string_view names, const char* value, const std::string& help) {
    // read_request_inputs() reads the values, because the order of all of them counts.
    verb.add_option(std::string(names), CLI::callback_t([](const CLI::results_t&) { return true; }),
                    help)
        ->type_name(value)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  add(kPromptFlags, "TEXT",
      "what to paint, change or answer; may be empty; - reads it from stdin, @FILE from a file (@@ "
      "begins a prompt that begins with @); may be repeated: its order with -i counts");
  add(kPromptFileFlags, "FILE", "the same as -p @FILE, or - for stdin");
  add(kImageFlags, "FILE",
      fmt::format("a picture to read ({}); - reads it from stdin; may be repeated",
                  readable_pictures()));
  if (any_family_reads(MediaKind::clip))
    add(kVideoFlags, "FILE",
        "a video to read, in any format that FFmpeg knows, or a folder of PNG frames; - reads it "
        "from stdin; may be repeated");
}

// In other programs "-n 2" means two pictures or two tokens.
void refuse_count_as_negative(const RequestFlags& flags) {
  const Field& field = all_fields()[field_index("negative_prompt")];
  const auto given = flags.values.find(std::string(field.flags));
  if (given == flags.values.end()) return;
  constexpr std::size_t kMostDigits = 4;
  for (const std::string& text : given->second) {
    const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
    if (text.empty() || text.size() > kMostDigits || !digits) continue;
    throw InputError(Setting::of("negative_prompt"),
                     "found {0}, expected what to lead away from; -b {0} makes {0} pictures, and "
                     "{1}={0} is the negative prompt \"{0}\"",
                     text, environment_name(long_names(field.flags).front()));
  }
}

// -n @FILE, as of a prompt.
void read_negative_from_file(RequestFlags& flags) {
  const Field& field = all_fields()[field_index("negative_prompt")];
  const auto given = flags.values.find(std::string(field.flags));
  if (given == flags.values.end()) return;
  for (std::string& text : given->second)
    text = read_prompt(text, Setting::of("negative_prompt"), &flags.negative_file);
}

// The aliases that are a family's own flag come to resolve() under that name.
std::string with_aliases(std::string_view flags, std::string_view aliases, Families families) {
  std::string names(flags);
  if (aliases.empty()) return names;  // most fields: a start asks for each field of each verb
  const auto known = flag_fields(families);
  for (const std::string_view alias : long_names(aliases)) {
    const auto is_it = [&](const Field& field) {
      const auto own = long_names(field.flags);
      return std::ranges::find(own, alias) != own.end();
    };
    if (std::ranges::none_of(known, is_it)) names += fmt::format(",--{}", alias);
  }
  return names;
}

}  // namespace

void add_text_option(CLI::App& verb, std::string_view flags, std::string_view value,
                     const std::string& help, std::vector<std::string>& texts) {
  const auto take = [&texts](const CLI::results_t& given) {
    texts = given;
    // From 2.2 on CLI11 takes "{}" for an empty list and says so with a second value.
    if (given == CLI::results_t{"{}", "%%"}) texts.pop_back();
    return true;
  };
  verb.add_option(std::string(flags), CLI::callback_t(take), help)
      ->type_name(std::string(value))
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_request_flags(CLI::App& verb, RequestFlags& flags, FieldChoice takes) {
  const auto families = all_family_configs();
  for (const FlagGroup& group : all_flag_groups()) {
    const std::string name(group.flags);
    add_text_option(verb, with_aliases(group.flags, group.aliases, families), group.value,
                    std::string(group.help), flags.values[name]);
  }
  add_inputs(verb);
  for (const Field& field : flag_fields(families)) {
    if (!takes(field)) continue;
    std::vector<std::string>& texts = flags.values[std::string(field.flags)];
    if (std::holds_alternative<BoolSlot>(field.slot)) {
      add_switch(verb, with_aliases(field.flags, field.aliases, families), std::string(field.help),
                 texts);
    } else {
      add_text_option(verb, with_aliases(field.flags, field.aliases, families),
                      flag_value(field, families), flag_help(field, families), texts);
    }
  }
  add_text_option(verb, "--set", "KEY=VALUE",
                  "edit the stage config, such as stages.1.default_sampling_params.seed=7; may be "
                  "repeated",
                  flags.overrides);
  verb.add_flag("--print-config", flags.print_config, "print every value and its origin, and stop")
      ->envname("DIPTYCH_PRINT_CONFIG");
}

// CLI11 notes each option it meets, and keeps the values of each in order.
void read_request_inputs(const CLI::App& verb, RequestFlags& flags) {
  const CLI::Option* prompt_file = verb.get_option("--prompt-file");
  std::map<const CLI::Option*, MediaKind> kinds = {
      {verb.get_option("--prompt"), MediaKind::text},
      {prompt_file, MediaKind::text},
      {verb.get_option("--image"), MediaKind::picture}};
  if (const CLI::Option* video = verb.get_option_no_throw("--video"))
    kinds.emplace(video, MediaKind::clip);
  std::map<const CLI::Option*, CLI::results_t> values;
  for (const auto& [option, kind] : kinds) {
    for (const std::string& value : option->results()) {
      const bool closes = value == "%%" && !values[option].empty() && values[option].back() == "{}";
      if (!closes) values[option].push_back(value);  // from 2.2 on CLI11 puts it behind "{}"
    }
  }
  flags.prompt_files = values[prompt_file];
  std::map<const CLI::Option*, std::size_t> next;
  for (const CLI::Option* option : verb.parse_order()) {
    if (!values.contains(option)) continue;
    const std::string& value = values[option].at(next[option]++);
    flags.inputs.push_back(
        {kinds.at(option), option == prompt_file ? prompt_of_file(value) : value});
  }
  refuse_count_as_negative(flags);
  read_negative_from_file(flags);
}

}  // namespace diptych

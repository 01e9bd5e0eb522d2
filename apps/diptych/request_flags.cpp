#include "apps/diptych/request_flags.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <unistd.h>

#include "apps/diptych/demo.h"
#include "lib/base/error.h"
#include "lib/base/picture_formats.h"
#include "lib/base/stdin.h"
#include "lib/base/text_file.h"
#include "lib/config/words.h"
#include "lib/pipelines/registry.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// Whether the variable belongs to a field that the verb does not take.
bool is_left_out(std::string_view variable, FieldChoice takes) {
  return std::ranges::any_of(flag_fields(all_family_configs()), [&](const Field& field) {
    if (takes(field)) return false;
    return std::ranges::any_of(long_names(field.flags), [&](std::string_view flag) {
      return environment_name(flag) == variable;
    });
  });
}

constexpr std::size_t kMostPromptBytes = std::size_t{1} << 20;
constexpr char kFileMark = '@';  // in front of the name of a prompt's file

// Checks a prompt from stdin or a file (`source` says which) and removes its byte order mark and
// its last line end.
std::string checked_prompt(std::string text, const std::string& source) {
  const Setting prompt = Setting::of("prompt");
  if (text.size() > kMostPromptBytes) throw InputError(prompt, "more than 1 MiB in {}", source);
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (text.empty())
    throw InputError(prompt, "{} holds no text (an empty one is --prompt \"\")", source);
  about(prompt, [&] { check_prompt(text, source); });
  return text;
}

std::string read_prompt_from_stdin() {
  std::optional<std::string> read = read_text_start(STDIN_FILENO, kMostPromptBytes + 1);
  if (!read)
    throw InputError(Setting::of("prompt"), "stdin cannot be read: {}", std::strerror(errno));
  return checked_prompt(*std::move(read), "stdin");
}

// The prompt text that means "the content of this file".
std::string file_text(const std::string& name) {
  return fmt::format("{}{}{}", kFileMark, name.starts_with(kFileMark) ? "./" : "", name);
}

// `text` is @NAME, or a prompt that begins with @ behind another one.
std::string read_prompt_from_file(const std::string& text, const Setting& setting) {
  const std::string name = text.substr(1);
  if (name.starts_with(kFileMark)) return name;
  std::error_code ignored;
  if (!fs::exists(name, ignored)) {
    throw InputError(setting, "{}: no such file; @@ begins a prompt that begins with @",
                     in_quotes(name));
  }
  return checked_prompt(
      about(setting, [&] { return read_text_start(fs::path(name), kMostPromptBytes + 1); }), name);
}

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
  const auto add = [&](const char* names, const char* value, const std::string& help) {
    // read_request_inputs() reads the values, because the order of all of them counts.
    verb.add_option(names, CLI::callback_t([](const CLI::results_t&) { return true; }), help)
        ->type_name(value)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  add("-p,--prompt", "TEXT",
      "what to paint, change or answer; may be empty; - reads it from stdin, @FILE from a file (@@ "
      "begins a prompt that begins with @); may be repeated: its order with -i counts");
  add("-f,--prompt-file,--file", "FILE", "the same as -p @FILE");
  add("-i,--image,-r,--ref-image,--input-image", "FILE",
      fmt::format("a picture to read ({}); - reads it from stdin; may be repeated",
                  readable_pictures()));
  if (any_family_reads(MediaKind::clip))
    add("--video", "FILE",
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
  for (std::string& text : given->second) {
    if (text.starts_with(kFileMark))
      text = read_prompt_from_file(text, Setting::of("negative_prompt"));
  }
}

using Families = std::span<const FamilyConfig* const>;

// The aliases that are a family's own flag come to resolve() under that name.
std::string with_aliases(std::string_view flags, std::string_view aliases, Families families) {
  std::string names(flags);
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

// "auto|t2i|edit": every task that a family has.
std::vector<std::string_view> task_names(Families families) {
  std::vector<std::string_view> names = {"auto"};
  for (const FamilyConfig* family : families) {
    for (const Task& task : family->tasks) {
      if (std::ranges::find(names, task.name) == names.end()) names.push_back(task.name);
    }
  }
  return names;
}

std::string value_of(const Field& field, Families families) {
  if (!std::holds_alternative<TaskSlot>(field.slot)) return std::string(field.value);
  return fmt::format("{}", fmt::join(task_names(families), "|"));
}

// What each task does, and which task `auto` is in the first family.
std::string task_help(Families families) {
  std::vector<std::string_view> names, texts;
  for (const FamilyConfig* family : families) {
    for (const Task& task : family->tasks) {
      if (std::ranges::find(names, task.name) != names.end()) continue;
      names.push_back(task.name);
      texts.push_back(task.help);
    }
  }
  std::string help = fmt::format("{}", fmt::join(texts, ", "));
  const Task* reads = families.front()->task_for({.pictures = 1});
  const Task* other = families.front()->task_for({});
  if (reads != nullptr && other != nullptr)
    help += fmt::format(
        "; auto: {} where there is a picture, else {}, or what the name of "
        "--output says (.txt, .mp4)",
        reads->name, other->name);
  return help;
}

bool has_field(const FamilyConfig& family, const Field& field) {
  return family.uses(field.name) &&
         std::ranges::find(family.fields, field.name, &Field::name) != family.fields.end();
}

// What each family says of a field, "" = nothing.
using FamilyTexts = std::vector<std::pair<std::string_view, std::string>>;

bool all_agree(const FamilyTexts& texts) {
  return std::ranges::all_of(texts,
                             [&](const auto& each) { return each.second == texts.front().second; });
}

// "bagel: 50; lance, wan: 30"
std::string by_family(const FamilyTexts& texts) {
  FamilyTexts names;  // text -> the families that say it
  for (const auto& [family, text] : texts) {
    if (text.empty()) continue;
    const auto known = std::ranges::find(names, text, &FamilyTexts::value_type::first);
    if (known == names.end()) {
      names.emplace_back(text, family);
    } else {
      known->second += fmt::format(", {}", family);
    }
  }
  std::string all;
  for (const auto& [text, families] : names)
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", families, text);
  return all;
}

// Behind the help of the field: limits of its families.
std::string limits_help(const Field& field, Families families) {
  FamilyTexts texts;
  for (const FamilyConfig* family : families) {
    if (has_field(*family, field))
      texts.emplace_back(family->name, family->limit_of(field.name).help);
  }
  if (all_agree(texts)) return texts.front().second;
  for (auto& [family, text] : texts) text.erase(0, text.find(' ') + 1);  // ", " or "; "
  return fmt::format("; {}", by_family(texts));
}

// "50", "1360; of videos from a picture 1280"; what a checkpoint sets is said so. "" = no default.
std::string default_of(const Field& field, const FamilyConfig& family) {
  Options defaults = default_options(family);
  if (family.of_checkpoint != nullptr && field.scope != Scope::session) {
    if (family.makes(MediaKind::clip)) defaults.run.makes = MediaKind::clip;
    const std::vector<OwnDefault> own = family.of_checkpoint(defaults.run);
    if (std::ranges::find(own, field.name, &OwnDefault::field) != own.end())
      return "depends on the model";
  }
  std::string text = value_text(field, defaults);
  for (const Task& task : family.tasks) {
    if (const std::string_view own = task_default(task, field.name); !own.empty())
      text += fmt::format("; of {} {}", task.results, own);
  }
  return text;
}

std::string defaults_help(const Field& field, Families families) {
  FamilyTexts texts;
  for (const FamilyConfig* family : families) {
    if (has_field(*family, field)) texts.emplace_back(family->name, default_of(field, *family));
  }
  return all_agree(texts) ? texts.front().second : by_family(texts);
}

// The help, extended by limits and defaults.
std::string help_of(const Field& field, Families families) {
  const bool is_task = std::holds_alternative<TaskSlot>(field.slot);
  std::string help = is_task ? task_help(families) : std::string(field.help);
  help += limits_help(field, families);
  const std::string defaults = defaults_help(field, families);
  return defaults.empty() ? help : fmt::format("{} [{}]", help, defaults);
}

// The variable that counts instead of one named after an alias: "DIPTYCH_STEPS" for
// "DIPTYCH_NUM_STEPS". "" if it is not named after an alias.
std::string variable_of_alias(std::string_view variable) {
  for (const Field& field : flag_fields(all_family_configs())) {
    for (const std::string_view alias : long_names(field.aliases)) {
      if (environment_name(alias) == variable)
        return environment_name(long_names(field.flags).front());
    }
  }
  return {};
}

}  // namespace

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

void warn_of_idle_variables(Log& log, FieldChoice takes) {
  std::vector<std::string> names = {
      "DIPTYCH_PRINT_CONFIG", "DIPTYCH_CHECK_CONFIG", "DIPTYCH_LOG_LEVEL", "DIPTYCH_VERBOSE",
      "DIPTYCH_QUIET", "DIPTYCH_PROMPT", "DIPTYCH_IMAGE", "DIPTYCH_VIDEO",
      // other verbs', the set-up's and the tests'
      "DIPTYCH_PROBE", "DIPTYCH_PROBES", "DIPTYCH_CASE", "DIPTYCH_DIFF", "DIPTYCH_JSON",
      "DIPTYCH_TENSORS", "DIPTYCH_BENCH_JSON", "DIPTYCH_FILTER", "DIPTYCH_TOLERANCE",
      "DIPTYCH_AGAINST", "DIPTYCH_OUTPUT_DIR", "DIPTYCH_BATCH_SIZE", "DIPTYCH_RESUME",
      "DIPTYCH_SHARD", "DIPTYCH_REPLAY", "DIPTYCH_PROMPTS", "DIPTYCH_PICTURES", "DIPTYCH_SIZES",
      "DIPTYCH_REPEATS", "DIPTYCH_WARMUP", "DIPTYCH_WARMUP_STEPS", "DIPTYCH_LAUNCHES",
      "DIPTYCH_KERNEL_TIMES", "DIPTYCH_FLOOR", "DIPTYCH_SAVE_DIR", "DIPTYCH_DATASET_FORMAT",
      "DIPTYCH_MAX_SAMPLES", "DIPTYCH_CUDA", "DIPTYCH_GOLDENS", "DIPTYCH_FUZZ_ITERATIONS"};
  const auto add = [&](std::string_view flags) {
    for (const std::string_view name : long_names(flags)) names.push_back(environment_name(name));
  };
  for (const Field& field : flag_fields(all_family_configs())) add(field.flags);
  for (const FlagGroup& group : all_flag_groups()) add(group.flags);
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view entry = *each;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("DIPTYCH_")) continue;
    if (is_left_out(name, takes)) log.warning("{} has no effect on this verb", name);
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string of_alias = variable_of_alias(name);
    const std::string_view near = of_alias.empty() ? nearest_word(name, known) : of_alias;
    if (!near.empty()) log.warning("{} has no effect; did you mean {}?", name, near);
  }
}

Resolved resolve_request(const Sources& sources, Log& log, FieldChoice takes,
                         Resolved (*how)(const Sources&)) {
  warn_of_idle_variables(log, takes);
  Resolved resolved = how(sources);
  with_places(resolved, [&] { find_family(resolved.options.run.pipeline); });
  return resolved;
}

void read_stdin_and_files(std::vector<InputItem>& inputs, bool stdin_is_taken) {
  const auto is_stdin = [](const InputItem& item) {
    return item.is_text() ? item.text == kStdin : item.file() == kStdin;
  };
  const auto setting_of = [](const InputItem& item) {
    return Setting::of(input_name(item.kind()));
  };
  bool used_stdin = false;
  for (const InputItem& item : inputs) {  // before any is read
    if (!is_stdin(item)) continue;
    if (stdin_is_taken)
      throw InputError(setting_of(item), "-: stdin holds the list; it is read once");
    if (std::exchange(used_stdin, true))
      throw InputError(setting_of(item), "- given twice; stdin is read once");
  }
  for (InputItem& item : inputs) {
    const bool from_stdin = is_stdin(item);
    const Setting setting = setting_of(item);
    if (from_stdin && !item.is_text()) {
      item = InputItem::of_file(item.kind(), about(setting, [] { return file_or_stdin(kStdin); }));
    } else if (from_stdin) {
      item.text = read_prompt_from_stdin();
    } else if (item.is_text() && item.text.starts_with(kFileMark)) {
      item.text = read_prompt_from_file(item.text, Setting::of("prompt"));
    }
  }
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

Sources RequestFlags::sources(FieldChoice takes) const {
  const auto visible = [takes](const std::string& name) {
    return is_left_out(name, takes) ? std::nullopt : environment(name);
  };
  return {inputs, values, overrides, visible, find_demos(), all_family_configs()};
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
                      value_of(field, families), help_of(field, families), texts);
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
  std::map<const CLI::Option*, std::size_t> next;
  for (const CLI::Option* option : verb.parse_order()) {
    if (!values.contains(option)) continue;
    const std::string& value = values[option].at(next[option]++);
    flags.inputs.push_back({kinds.at(option), option == prompt_file ? file_text(value) : value});
  }
  refuse_count_as_negative(flags);
  read_negative_from_file(flags);
}

}  // namespace diptych

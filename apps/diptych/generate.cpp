// `diptych generate`: one request, from a prompt to PNG files.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "apps/diptych/generate_outputs.h"
#include "apps/diptych/generate_record.h"
#include "apps/diptych/verbs.h"
#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/config/resolve.h"
#include "lib/config/words.h"
#include "lib/media/png.h"
#include "lib/pipelines/pipeline.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

struct GenerateFlags {
  std::map<std::string, std::vector<std::string>> values;  // by the flags of the field or group
  std::vector<std::string> overrides;
  bool print_config = false, check_config = false;
};

// The demo that comes with the binary: in the repository above a build folder, or installed.
std::optional<fs::path> find_demo() {
  const fs::path demo = fs::path("stage_configs") / "demo" / "demo.yaml";
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  for (fs::path folder = binary.parent_path();; folder = folder.parent_path()) {
    if (fs::exists(folder / demo, error)) return folder / demo;
    if (folder == folder.parent_path()) break;
  }
  return std::nullopt;
}

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// A variable that is nearly one of ours would otherwise do nothing, silently.
void warn_of_misspelt_variables(Log& log) {
  std::vector<std::string> names = {
      "DIPTYCH_PRINT_CONFIG", "DIPTYCH_CHECK_CONFIG", "DIPTYCH_LOG_LEVEL",      "DIPTYCH_VERBOSE",
      "DIPTYCH_QUIET",  // other verbs', the set-up's and the tests'
      "DIPTYCH_PROBE",        "DIPTYCH_PROBES",       "DIPTYCH_CASE",           "DIPTYCH_DIFF",
      "DIPTYCH_JSON",         "DIPTYCH_FILTER",       "DIPTYCH_TOLERANCE",      "DIPTYCH_AGAINST",
      "DIPTYCH_CUDA",         "DIPTYCH_GOLDENS",      "DIPTYCH_FUZZ_ITERATIONS"};
  const auto add = [&](std::string_view flags) {
    for (const std::string_view name : long_names(flags)) names.push_back(environment_name(name));
  };
  for (const Field& field : all_fields()) add(field.flags);
  for (const FlagGroup& group : all_flag_groups()) add(group.flags);
  const std::vector<std::string_view> known(names.begin(), names.end());
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view entry = *each;
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("DIPTYCH_") || std::ranges::find(known, name) != known.end()) continue;
    const std::string_view near = nearest_word(name, known);
    if (!near.empty()) log.warning("{} has no effect; did you mean {}?", name, near);
  }
}

std::string read_prompt_from_stdin() {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  std::string text(kMostBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), stdin));
  if (std::ferror(stdin) != 0) throw InputError("--prompt: stdin cannot be read");
  if (text.size() > kMostBytes) throw InputError("--prompt: more than 1 MiB on stdin");
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  check_prompt(text, "--prompt: stdin");
  return text;
}

// What painting needs beyond a valid configuration.
void require_complete(Resolved& resolved) {
  RunConfig& run = resolved.options.run;
  if (resolved.is_default("prompt")) {
    throw InputError("--prompt: not given; expected a text (\"\" is one), or - for stdin");
  }
  if (run.prompt == "-") run.prompt = read_prompt_from_stdin();
  if (run.model.empty() && run.load_format != "dummy") {
    throw InputError(
        "--model: not given; expected the folder of a checkpoint, or --load-format dummy");
  }
  if (!run.trace_filter.empty() && run.trace.empty()) {
    throw InputError("--trace-filter: given without --trace FILE");
  }
  if (!run.noise.empty() && !fs::exists(run.noise)) {
    throw InputError("--noise: {}: no such file", run.noise.string());
  }
  if (!run.trace.empty()) {
    if (run.trace.extension() != ".safetensors") {
      throw InputError("--trace: {}: expected a .safetensors file", run.trace.string());
    }
    AtomicFile(run.trace);  // can it be written?
  }
}

ProgressStyle progress_style(const std::string& name) {
  if (name == "none") return ProgressStyle::none;
  if (name == "kv") return ProgressStyle::kv;
  return name == "jsonl" ? ProgressStyle::jsonl : ProgressStyle::automatic;
}

int paint(Resolved& resolved, Pipeline pipeline, Log& log) {
  require_complete(resolved);
  const Options& options = resolved.options;
  const auto paths = plan_outputs(options.output, options.run.sampling.batch_count);
  if (resolved.uses_demo) {
    log.info(
        "no -c or -m given: the demo of stage_configs paints, a tiny checkpoint with random "
        "weights; "
        "its pictures are abstract");
  }
  for (const fs::path& path : paths) {
    if (!options.run.trace.empty() && fs::absolute(path) == fs::absolute(options.run.trace)) {
      throw InputError("--trace: {}: is the picture's place, too", options.run.trace.string());
    }
  }
  Progress progress(log, progress_style(options.progress));
  const auto write = [&](const Picture& picture, const Report& report) {
    check_interrupted();
    const fs::path& path = paths.at(picture.index);
    write_png(path, picture.rgb, picture_texts(options, picture, report));
    fmt::print("{}\n", path.string());
    std::fflush(stdout);
  };
  const Report report = pipeline(options.run, log, progress, write);
  log.info("{}", summary_line(report));
  return 0;
}

int generate(const GenerateFlags& flags, Log& log) {
  warn_of_misspelt_variables(log);
  Resolved resolved = resolve({flags.values, flags.overrides, environment, find_demo()});
  const Pipeline pipeline = find_pipeline(resolved.options.run.pipeline);
  if (flags.print_config) {
    fmt::print("{}", config_table(resolved));
    return 0;
  }
  if (flags.check_config) {
    const fs::path& config = resolved.options.config;
    fmt::print("{}: valid\n", config.empty() ? "configuration" : config.string());
    return 0;
  }
  return paint(resolved, pipeline, log);
}

// Takes the texts as they are; lib/config reads them.
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

std::string help_of(const Field& field) {
  const Options defaults;
  std::string text = value_text(field, defaults);
  if (text.empty()) return std::string(field.help);
  return fmt::format("{} [{}]", field.help, text);
}

constexpr const char* kFooter =
    "Every flag but --set is an environment variable, too (--cfg-mode: DIPTYCH_CFG_MODE; an empty "
    "one counts "
    "as\n"
    "none; repeatable ones are separated by ;). A flag wins over a variable, that over the stage\n"
    "config, that over the default in [ ]; --print-config shows what came from where. Existing "
    "output\n"
    "files are replaced, and only by a complete picture.\n"
    "Examples:\n"
    "  diptych generate -p \"a red fox under an oak\" -o fox.png\n"
    "  diptych generate -m BAGEL-7B-MoT -p \"a cup of tea\" --size 1024x768 --seed 7 -b 4 -o "
    "tea.png\n"
    "  diptych generate -c stage_configs/bagel.yaml -m BAGEL-7B-MoT -p - -o tea-%03d.png -b 2 < "
    "prompt.txt\n"
    "  diptych generate -c my.yaml --set stages.1.default_sampling_params.seed=7 --print-config";

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("generate", "paint pictures from a prompt");
  const auto flags = std::make_shared<GenerateFlags>();
  for (const FlagGroup& group : all_flag_groups()) {
    const std::string name(group.flags);
    add_text_option(*verb, group.flags, group.value, std::string(group.help), flags->values[name]);
  }
  for (const Field& field : all_fields()) {
    if (field.flags.empty()) continue;
    const std::string name(field.flags);
    add_text_option(*verb, field.flags, field.value, help_of(field), flags->values[name]);
  }
  add_text_option(*verb, "--set", "KEY=VALUE",
                  "edit the stage config, such as stages.1.default_sampling_params.seed=7; may be "
                  "repeated",
                  flags->overrides);
  verb->add_flag("--print-config", flags->print_config,
                 "print every value and its origin, and stop")
      ->envname("DIPTYCH_PRINT_CONFIG");
  verb->add_flag("--check-config", flags->check_config,
                 "check flags and stage config without loading weights, and stop")
      ->envname("DIPTYCH_CHECK_CONFIG");
  verb->footer(kFooter);
  verb->callback([flags, &run] { run = [flags](Log& log) { return generate(*flags, log); }; });
}

}  // namespace diptych

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
  std::vector<FlagInput> inputs;                           // in order
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
      "DIPTYCH_PRINT_CONFIG", "DIPTYCH_CHECK_CONFIG", "DIPTYCH_LOG_LEVEL", "DIPTYCH_VERBOSE",
      "DIPTYCH_QUIET", "DIPTYCH_PROMPT", "DIPTYCH_IMAGE",
      // other verbs', the set-up's and the tests'
      "DIPTYCH_PROBE", "DIPTYCH_PROBES", "DIPTYCH_CASE", "DIPTYCH_DIFF", "DIPTYCH_JSON",
      "DIPTYCH_FILTER", "DIPTYCH_TOLERANCE", "DIPTYCH_AGAINST", "DIPTYCH_CUDA", "DIPTYCH_GOLDENS",
      "DIPTYCH_FUZZ_ITERATIONS"};
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

// At most one text stands for stdin.
void read_inputs(RunConfig& run) {
  bool taken = false;
  for (InputItem& item : run.inputs) {
    if (item.is_image() || item.text != "-") continue;
    if (std::exchange(taken, true)) throw InputError("--prompt: - given twice; stdin is read once");
    item.text = read_prompt_from_stdin();
  }
}

void check_file(const char* flag, const fs::path& path, const char* extension) {
  if (path.empty()) return;
  if (path.extension() != extension) {
    throw InputError("{}: {}: expected a {} file", flag, path.string(), extension);
  }
  AtomicFile{path};  // can it be written?
}

// What a run needs beyond a valid configuration, as far as files and folders tell.
void require_complete(const Options& options) {
  const RunConfig& run = options.run;
  if (run.inputs.empty()) {
    throw InputError("--prompt: not given; expected a text (\"\" is one), or - for stdin");
  }
  for (const InputItem& item : run.inputs) {
    if (item.is_image() && !fs::exists(item.image))
      throw InputError("--image: {}: no such file", item.image.string());
  }
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
  if (!options.think_output.empty() && (!run.think || run.answers())) {
    throw InputError("--think-output: given without a plan; expected --think and a picture");
  }
  check_file("--trace", run.trace, ".safetensors");
  check_file("--think-output", options.think_output, ".txt");
}

ProgressStyle progress_style(const std::string& name) {
  if (name == "none") return ProgressStyle::none;
  if (name == "kv") return ProgressStyle::kv;
  return name == "jsonl" ? ProgressStyle::jsonl : ProgressStyle::automatic;
}

// A flag that this task would ignore.
void require_meaning(const Resolved& resolved) {
  const RunConfig& run = resolved.options.run;
  const auto forbid = [&](std::initializer_list<std::string_view> names, std::string_view why) {
    for (const std::string_view name : names) {
      const std::string& origin = resolved.origins[field_index(name)];
      if (origin.starts_with("--")) throw InputError("{}: {}", origin, why);
    }
  };
  if (run.answers()) {
    forbid(
        {"width", "height", "batch_count", "steps", "cfg_text_scale", "cfg_img_scale",
         "cfg_interval", "cfg_renorm_type", "cfg_renorm_min", "timestep_shift", "cfg_mode", "noise",
         "negative_prompt", "cache_mode", "cache_threshold", "cache_calibration", "vae_tiling"},
        fmt::format("has no meaning for --task {}, which paints nothing", run.task));
  } else {
    forbid({"max_tokens"}, "is of answers; a plan has --max-think-tokens");
    if (run.cache_mode != "teacache")
      forbid({"cache_threshold", "cache_calibration"}, "given without --cache-mode teacache");
    if (!run.think)
      forbid({"max_think_tokens", "temperature", "top_k", "top_p"}, "given without --think");
  }
  if (run.answers() && run.think) forbid({"max_tokens"}, "with --think it is --max-think-tokens");
  if (!run.noise.empty()) forbid({"seed"}, "given together with --noise; expected one of them");
}

void write_text_file(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.write("\n");
  file.commit();
}

void say_path(const fs::path& path) {
  fmt::print("{}\n", path.string());
  std::fflush(stdout);
}

void show_plan(const Options& options, std::string_view plan, Log& log) {
  log.info("plan: {}", plan);
  if (!options.think_output.empty()) write_text_file(options.think_output, plan);
}

int run(Resolved& resolved, const std::vector<fs::path>& paths, Session& session, Log& log) {
  const Options& options = resolved.options;
  Progress progress(log, progress_style(options.progress));
  Results results;
  results.picture = [&](const Picture& picture, const Report& report) {
    check_interrupted();
    const fs::path& path = paths.at(picture.index);
    write_png(path, picture.rgb, picture_texts(options, picture, report));
    say_path(path);
  };
  results.answer = [&](const Answer& answer, const Report&) {
    if (!paths.empty()) {
      write_text_file(paths.front(), answer.text);
      return say_path(paths.front());
    }
    fmt::print("{}\n", answer.text);
  };
  results.plan = [&](std::size_t, std::string_view plan) { show_plan(options, plan, log); };
  session.run(std::span(&options.run, 1), progress, results);
  log.info("{}", summary_line(session.report()));
  return 0;
}

int start(Resolved& resolved, Log& log) {
  Options& options = resolved.options;
  require_meaning(resolved);
  read_inputs(options.run);
  require_complete(options);
  const bool to_stdout = options.run.answers() && resolved.is_default("output");
  std::vector<fs::path> paths;
  if (!to_stdout) {
    paths = plan_outputs(options.output, options.run.sampling.batch_count,
                         options.run.answers() ? ".txt" : ".png");
  }
  if (resolved.uses_demo) {
    log.info(
        "no -c or -m given: the demo of stage_configs runs, a tiny checkpoint with random weights; "
        "its pictures are abstract and its texts senseless");
  }
  for (const fs::path& path : paths) {
    for (const auto& [flag, other] : {std::pair{"--trace", options.run.trace},
                                      std::pair{"--think-output", options.think_output}}) {
      if (!other.empty() && fs::absolute(path) == fs::absolute(other))
        throw InputError("{}: {}: is the output's place, too", flag, other.string());
    }
  }
  const auto session = find_session(options.run.pipeline)(options.run, log);
  return run(resolved, paths, *session, log);
}

int generate(const GenerateFlags& flags, Log& log) {
  warn_of_misspelt_variables(log);
  Resolved resolved =
      resolve({flags.inputs, flags.values, flags.overrides, environment, find_demo()});
  find_session(resolved.options.run.pipeline);
  if (flags.print_config) {
    fmt::print("{}", config_table(resolved));
    return 0;
  }
  if (flags.check_config) {
    require_meaning(resolved);
    const RunConfig& run = resolved.options.run;
    if (!run.model.empty() && !fs::is_directory(run.model))
      throw InputError("--model: {}: not found or not a folder", run.model.string());
    const fs::path& config = resolved.options.config;
    fmt::print("{}: valid\n", config.empty() ? "configuration" : config.string());
    return 0;
  }
  return start(resolved, log);
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

// "--think", or "--think=false" against a variable or a stage config.
void add_switch(CLI::App& verb, std::string_view flags, const std::string& help,
                std::vector<std::string>& texts) {
  verb.add_flag_function(
      std::string(flags), [&texts](std::int64_t count) { texts = {count > 0 ? "true" : "false"}; },
      help);
}

void add_inputs(CLI::App& verb) {
  const auto add = [&](const char* names, const char* value, const char* help) {
    // The values are read in ordered_inputs(), once all are there.
    verb.add_option(names, CLI::callback_t([](const CLI::results_t&) { return true; }), help)
        ->type_name(value)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  };
  add("-p,--prompt", "TEXT",
      "what to paint, change or answer; may be empty; - reads it from stdin; may be repeated: its "
      "order with -i counts");
  add("-i,--image", "FILE", "a picture to read (PNG, JPEG, BMP); may be repeated");
}

// CLI11 notes each option it meets, and keeps the values of each in order.
std::vector<FlagInput> ordered_inputs(const CLI::App& verb) {
  const CLI::Option* prompt = verb.get_option("--prompt");
  const CLI::Option* image = verb.get_option("--image");
  std::map<const CLI::Option*, CLI::results_t> values;
  for (const CLI::Option* option : {prompt, image}) {
    values[option] = option->results();
    std::erase(values[option], "%%");  // from 2.2 on CLI11 puts it behind "{}"
  }
  std::map<const CLI::Option*, std::size_t> next;
  std::vector<FlagInput> inputs;
  for (const CLI::Option* option : verb.parse_order()) {
    if (!values.contains(option)) continue;
    inputs.push_back({option == image, values[option].at(next[option]++)});
  }
  return inputs;
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
    "  diptych generate -m BAGEL-7B-MoT -i room.jpg -p \"remove the chair\" -o edited.png\n"
    "  diptych generate -m BAGEL-7B-MoT -i cat.png -i garden.png -p \"put the cat there\" --think\n"
    "  diptych generate -m BAGEL-7B-MoT --task understand -i street.jpg -p \"how many cars?\"\n"
    "  diptych generate -m BAGEL-7B-MoT --task chat -p \"what is a diptych?\" --temperature 0.7\n"
    "  diptych generate -c stage_configs/bagel.yaml -m BAGEL-7B-MoT -p - -o tea-%03d.png -b 2 < "
    "prompt.txt\n"
    "  diptych generate -c my.yaml --set stages.1.default_sampling_params.seed=7 --print-config";

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("generate", "paint, edit or answer, from texts and pictures");
  const auto flags = std::make_shared<GenerateFlags>();
  for (const FlagGroup& group : all_flag_groups()) {
    const std::string name(group.flags);
    add_text_option(*verb, group.flags, group.value, std::string(group.help), flags->values[name]);
  }
  add_inputs(*verb);
  for (const Field& field : all_fields()) {
    if (field.flags.empty()) continue;
    std::vector<std::string>& texts = flags->values[std::string(field.flags)];
    if (std::holds_alternative<BoolSlot>(field.slot)) {
      add_switch(*verb, field.flags, std::string(field.help), texts);
    } else {
      add_text_option(*verb, field.flags, field.value, help_of(field), texts);
    }
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
  verb->callback([flags, verb, &run] {
    flags->inputs = ordered_inputs(*verb);
    run = [flags](Log& log) { return generate(*flags, log); };
  });
}

}  // namespace diptych

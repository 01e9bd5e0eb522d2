// `diptych bench`: how long a request takes, measured so that two figures can be held against each
// other.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "apps/diptych/bench/datasets.h"
#include "apps/diptych/bench/drafting.h"
#include "apps/diptych/bench/plan.h"
#include "apps/diptych/bench/report.h"
#include "apps/diptych/bench/run.h"
#include "apps/diptych/command_line.h"
#include "apps/diptych/demo.h"
#include "apps/diptych/enhancer.h"
#include "apps/diptych/prompt_files.h"
#include "apps/diptych/ranks.h"
#include "apps/diptych/request_flags.h"
#include "apps/diptych/request_sources.h"
#include "apps/diptych/result_files.h"
#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/config/words.h"
#include "lib/request/files_read.h"
#include "lib/request/output_names.h"
#include "lib/request/request_checks.h"
#include "lib/runtime/runtime.h"
#include "lib/session/session.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Fields that write files or take extra time would spoil the measurement.
bool takes_field(const Field& field) {
  return field.scope != Scope::output && field.scope != Scope::report;
}

constexpr const char* kPrompt = "A small red fox sits under an old oak tree.";
constexpr const char* kStdout = "-";
constexpr const char* kLaunches = "--launches";
constexpr const char* kKernelTimes = "--kernel-times";
constexpr const char* kFloor = "--floor";
constexpr std::int64_t kMostRuns = 10'000;

struct BenchFlags : RequestFlags {
  std::optional<std::string> sizes, batch_sizes;
  std::string sizes_origin;  // the flag, or its variable
  std::optional<std::string> repeats;
  std::string warmup = "1", warmup_steps;
  std::vector<std::string> against, datasets;
  std::optional<std::string> dataset_format, max_samples;
  fs::path json, save_dir;
  bool launches = false, kernel_times = false, floor = false;
};

// Adds a prompt if the user gave nothing to read.
RequestFlags with_prompt(RequestFlags flags) {
  const auto given = [environment = process_environment()](const char* variable) {
    return !environment(variable).value_or("").empty();
  };
  if (flags.inputs.empty() && !given("DIPTYCH_PROMPT") && !given("DIPTYCH_IMAGE") &&
      !given("DIPTYCH_VIDEO"))
    flags.inputs.push_back({MediaKind::text, kPrompt});
  return flags;
}

// Throws InputError if the request has no denoise steps for this flag to look into.
void check_probe(std::string_view flag, const RunConfig& run) {
  const auto refuse = [&](std::string_view why) {
    throw InputError(Setting::of(with_underscores(flag.substr(2))), "{}", why);
  };
  if (run.read_device) refuse("of a model that reads and paints, and read_device makes two");
  if (run.answers()) refuse("of a denoise step, and nothing is painted");
  Log quiet(LogLevel::quiet);
  if (!resolve_device(run.device, quiet).is_cuda())
    refuse("needs a CUDA device, the run is on the CPU");
  if (flag == kLaunches) return;
  if (run.cache_mode != StepCacheMode::none)
    refuse(fmt::format("of steps that are all computed, found cache_mode {}",
                       name_of(run.cache_mode)));
  if (run.kernels == KernelPolicy::reference) refuse("of the kernels, found kernels reference");
  if (flag == kKernelTimes) return;
  if (run.quantization == Quantization::int8)
    refuse("of products that never need a copy of their weights, found quantization int8");
  if (run.offload == OffloadWish::layers) refuse("of weights on the device, found offload layers");
}

BenchPlan make_plan(const BenchFlags& flags, const Resolved& request) {
  BenchPlan plan;
  plan.repeats = whole_number(flags.repeats.value_or("5"), Setting::of("repeats"), 1, kMostRuns);
  plan.warmup = whole_number(flags.warmup, Setting::of("warmup"), 0, kMostRuns);
  const bool paints = !request.options.run.answers();
  if (!flags.warmup_steps.empty()) {
    const Setting steps = Setting::of("warmup_steps");
    if (plan.warmup == 0)
      throw InputError(steps, SettingText{"given together with ", Setting::of("warmup", "0")});
    if (!paints) throw InputError(steps, "has no meaning where nothing is painted");
    const std::int64_t least =
        std::max<std::int64_t>(1, request.options.run.family->limit_of("steps").low);
    plan.warmup_steps = whole_number(flags.warmup_steps, steps, least, kMostRuns);
  }
  if (writes_results(request.options.run)) plan.save_dir = flags.save_dir;
  plan.launches = flags.launches;
  plan.kernel_times = flags.kernel_times;
  plan.floor = flags.floor;
  plan.cases =
      plan_bench(request, {flags.sizes, flags.batch_sizes,
                           flags.against.empty() ? against_drafting(request) : flags.against,
                           flags.sizes_origin});
  for (const auto& [flag, given] : {std::pair{kLaunches, plan.launches},
                                    {kKernelTimes, plan.kernel_times},
                                    {kFloor, plan.floor}}) {
    if (!given) continue;
    for (const BenchSetting& setting : plan.cases.front().settings)
      check_probe(flag, setting.options().run);
  }
  return plan;
}

// `requests`: those whose inputs it must not replace.
void check_json_place(const fs::path& json, const std::vector<const Options*>& requests) {
  if (json.empty() || json == kStdout) return;
  const Setting setting = Setting::of("json");
  require_extension(json, {".json"}, setting);
  for (const Options* each : requests) check_not_an_input(*each, json, setting);
  require_writable(json, setting);
}

// The table on stdout and the JSON where it is asked for.
void show(const fs::path& place, const std::string& table, const Json& result) {
  const std::string json = result.dump(2, ' ', false, Json::error_handler_t::replace);
  if (place == kStdout) {
    fmt::print("{}\n", json);
    return;
  }
  fmt::print("{}", table);
  if (place.empty()) return;
  write_text_file(place, json);
  print_path(place);
}

// What measures one request and has no meaning for many.
void refuse_request_flags(const BenchFlags& flags) {
  const std::pair<const char*, bool> given[] = {{"repeats", flags.repeats.has_value()},
                                                {"sizes", flags.sizes.has_value()},
                                                {"batch_sizes", flags.batch_sizes.has_value()},
                                                {"against", !flags.against.empty()},
                                                {"save_dir", !flags.save_dir.empty()},
                                                {"warmup_steps", !flags.warmup_steps.empty()},
                                                {"prompt", !flags.inputs.empty()},
                                                {"launches", flags.launches},
                                                {"kernel_times", flags.kernel_times},
                                                {"floor", flags.floor}};
  for (const auto& [flag, is_given] : given) {
    if (is_given)
      throw InputError(Setting::of(flag),
                       SettingText{"has no meaning with ", Setting::of("dataset"),
                                   ", whose rows are asked once"});
  }
}

DatasetSettings dataset_settings(const BenchFlags& flags, const RunConfig& run) {
  refuse_request_flags(flags);
  if (!run.answers()) {
    SettingText text = {"is of texts, but ", Setting::of("task", run.task), " writes none"};
    if (const Task* writes = run.family->task_for({}, MediaKind::text))
      text.insert(text.end(), {"; expected ", Setting::of("task", writes->name)});
    throw InputError(Setting::of("dataset"), std::move(text));
  }
  DatasetSettings settings;
  settings.files.assign(flags.datasets.begin(), flags.datasets.end());
  settings.warmup = whole_number(flags.warmup, Setting::of("warmup"), 0, kMostRuns);
  if (flags.max_samples)
    settings.max_samples = whole_number(*flags.max_samples, Setting::of("max_samples"), 1,
                                        std::numeric_limits<std::int32_t>::max());
  if (!flags.dataset_format) return settings;
  const auto kind = parse_choice<DatasetKind>(*flags.dataset_format);
  if (!kind)
    throw InputError(Setting::of("dataset_format"), "unknown value {}{}",
                     in_quotes(*flags.dataset_format),
                     suggestion(*flags.dataset_format, kChoiceNames<DatasetKind>));
  settings.kind = *kind;
  return settings;
}

int start_datasets(const BenchFlags& flags, const Resolved& request, Log& log) {
  const DatasetSettings settings = dataset_settings(flags, request.options.run);
  require_meaning(request, "--");
  require_model(request.options.run);
  check_json_place(flags.json, {&request.options});
  if (flags.check_config) {
    check_datasets(request, settings, log);
    fmt::print("configuration: valid\n");
    return 0;
  }
  const DatasetResult result = run_datasets(request, settings, log);
  show(flags.json, datasets_table(result), datasets_json(request, result));
  if (result.failure) std::rethrow_exception(result.failure);
  return 0;
}

// What is only for data sets.
void refuse_dataset_flags(const BenchFlags& flags) {
  for (const auto& [flag, given] : {std::pair{"dataset_format", flags.dataset_format.has_value()},
                                    {"max_samples", flags.max_samples.has_value()}}) {
    if (given)
      throw InputError(Setting::of(flag),
                       SettingText{"given without ", Setting::of("dataset", "FILE")});
  }
}

// Ahead of what is measured.
void enhance_plan(BenchPlan& plan, Log& log) {
  std::vector<Options*> requests;
  for (BenchCase& each : plan.cases) {
    for (BenchSetting& setting : each.settings) requests.push_back(&setting.request.options);
  }
  Progress progress(log, requests.front()->progress);
  enhance_prompts(requests, progress, log);
}

// Puts a meter in front of the ranks of the request, where they divide its steps.
std::shared_ptr<MeteredRanks> meter_ranks(RunConfig& run) {
  if (run.ranks == nullptr || !run.ranks->comm().divides_steps()) return nullptr;
  auto meter = std::make_shared<MeteredRanks>(run.ranks);
  run.ranks = meter;
  return meter;
}

// What decides how often ranks run what they share.
std::map<std::string, std::string> flags_of_runs(const BenchFlags& flags) {
  return {{"repeats", flags.repeats.value_or("")},
          {"warmup", flags.warmup},
          {"warmup_steps", flags.warmup_steps},
          {"sizes", flags.sizes.value_or("")},
          {"batch_sizes", flags.batch_sizes.value_or("")},
          {"against", fmt::format("{}", fmt::join(flags.against, "; "))},
          {"launches", flags.launches ? "on" : "off"},
          {"kernel_times", flags.kernel_times ? "on" : "off"},
          {"floor", flags.floor ? "on" : "off"}};
}

// `ways`: to divide the request among its ranks, of which the fastest is chosen for each size.
int start(const BenchFlags& flags, Resolved& request, const std::vector<ParallelDegrees>& ways,
          Log& log) {
  if (!flags.datasets.empty()) return start_datasets(flags, request, log);
  refuse_dataset_flags(flags);
  require_same_flags(request.options.run, flags_of_runs(flags));
  read_stdin_and_files(request.options.run.inputs);
  const std::shared_ptr<MeteredRanks> meter = meter_ranks(request.options.run);
  BenchPlan plan = make_plan(flags, request);
  plan.meter = meter;
  if (flags.against.empty()) plan.ways = ways;  // both sides divide it alike
  std::vector<const Options*> requests;
  for (const BenchSetting& each : plan.cases.front().settings)  // of any size the same files
    requests.push_back(&each.options());
  check_json_place(flags.json, requests);
  if (request.uses_demo) log.info("{}", demo_notice(request.options.run));
  if (flags.check_config) {
    check_bench(plan, log);
    fmt::print("configuration: valid\n");
    return 0;
  }
  enhance_plan(plan, log);
  const BenchResult result = run_bench(plan, log);
  if (!writes_results(request.options.run)) return 0;
  show(flags.json, bench_table(plan, result), bench_json(plan, result));
  return 0;
}

int bench(const BenchFlags& flags, Log& log) {
  Resolved request = resolve_request(with_prompt(flags), log, takes_field);
  // A stage config may set it for `generate`.
  if (std::exchange(request.options.run.cache_report, false))
    log.warning("cache_report has no effect on this verb; --against cache_mode=none compares");
  if (flags.print_config) {
    fmt::print("{}", config_table(request));
    return 0;
  }
  return with_places(request, [&] {
    const Meeting meeting = flags.check_config ? Meeting() : meet_ranks(request, log);
    return as_rank(meeting.ranks, [&] { return start(flags, request, meeting.ways, log); });
  });
}

constexpr const char* kFooter =
    "Loads the model once and runs each size --repeats times after a warm-up. Prints minimum,\n"
    "median, 90th percentile and interquartile range (interpolated) of the seconds of an image\n"
    "or a video (from its prompt to the encoded file), of a denoise step and of each stage (of all "
    "pictures\n"
    "of a run), the tokens per second of written text, and what ran. --json keeps every run, all\n"
    "values of the request, hashes of weights, noise and latents, and the machine. If a file of\n"
    "--save-dir cannot be written, the exit code is 3.\n"
    "--against runs the request and the same request with another value in turn, A B A B. It\n"
    "prints the ratio of their times pair by pair, median and quartiles, and how far their\n"
    "pictures are apart. The key is any flag of a request with _ for -; several --against change\n"
    "several values. If one belongs to the model (dtype, attention, kernels, model, ...), both\n"
    "models are loaded at once. A text with a drafter is held against the same without one.\n"
    "Processes that share a request also tell what the first of them sends to the others, and\n"
    "its share of denoising in exchanges, measured in one more run of each size and setting.\n"
    "--batch-sizes writes as many texts of the prompt at once, as batch --batch-size does; an\n"
    "answer's seconds are then those of all, divided by their number.\n"
    "--dataset asks a language model every row of a file of questions, with its drafter and\n"
    "without: acceptance, also by position, tokens per second, speed-up and accuracy where the\n"
    "right answer is known. Rows are JSON as Alpaca, GSM8K, HumanEval, MATH-500, MBPP and\n"
    "MT-Bench are published, or {\"prompt\": ...}, {\"question\": ...}, {\"turns\": [...]}.\n"
    "Examples:\n"
    "  diptych bench -c stage_configs/{family}.yaml --load-format dummy --sizes 256x256,512x512\n"
    "  diptych bench -m {model} --size 1024x1024 --repeats 7 --json bench.json --save-dir "
    "out\n"
    "  diptych bench -m {model} --sizes 256x256,1024x1024 --against cfg_mode=sequential\n"
    "  diptych bench -m {model} --size 512x512 --against attention=flash --launches\n"
    "  diptych bench -m {model} --sizes 256x256,1024x1024 --floor --kernel-times\n"
    "  diptych bench -m {text model} --draft-model DRAFTER --dataset gsm8k.jsonl\n"
    "  diptych bench -m {text model} --draft-model DRAFTER --batch-sizes 1,4,16\n"
    "  diptych bench -m {model} --task chat -p \"what is a diptych?\" --max-tokens 512";

void add_probe_flags(CLI::App& verb, BenchFlags& flags) {
  verb.add_flag(
          kLaunches, flags.launches,
          "count kernels, launches, calls for memory and waits ahead of the last launch (CUDA), in "
          "one more run of each with the profiler, which replays the steps that are kept: a step's "
          "mean")
      ->envname("DIPTYCH_LAUNCHES");
  verb.add_flag(kKernelTimes, flags.kernel_times,
                "tell the time of a step's kernels by what they are for, with bytes, FLOP and "
                "shares of this device's peak (CUDA), in one more run of each with the profiler")
      ->envname("DIPTYCH_KERNEL_TIMES");
  verb.add_flag(kFloor, flags.floor,
                "measure the steps' products and attention alone behind each run (CUDA), and "
                "print denoise / floor")
      ->envname("DIPTYCH_FLOOR");
}

void add_dataset_flags(CLI::App& verb, BenchFlags& flags) {
  add_text_option(verb, "--dataset", "FILE",
                  "questions in JSON lines to measure a language model with; may be repeated",
                  flags.datasets);
  verb.add_option("--dataset-format", flags.dataset_format,
                  "what the rows are [auto: as the keys of the first say]")
      ->type_name(fmt::format("{}", fmt::join(kChoiceNames<DatasetKind>, "|")))
      ->envname("DIPTYCH_DATASET_FORMAT");
  verb.add_option("--max-samples", flags.max_samples, "first rows of each --dataset [all]")
      ->type_name("N")
      ->envname("DIPTYCH_MAX_SAMPLES");
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("bench", "how long a request takes, and against another");
  const auto flags = std::make_shared<BenchFlags>();
  verb->add_option("--sizes", flags->sizes, "pictures of these sizes, such as 256x256,512x512")
      ->type_name("WxH,...")
      ->envname("DIPTYCH_SIZES");
  verb->add_option("--batch-sizes", flags->batch_sizes,
                   "texts that are written in one forward, such as 1,4,16")
      ->type_name("N,...")
      ->envname("DIPTYCH_BATCH_SIZES");
  add_text_option(*verb, "--against", "KEY=VALUE",
                  "also run with this value, in turn; may be repeated", flags->against);
  verb->add_option("--repeats", flags->repeats, "measured runs of each size and setting [5]")
      ->type_name("N")
      ->envname("DIPTYCH_REPEATS");
  verb->add_option("--warmup", flags->warmup, "runs before these [1]")
      ->type_name("N")
      ->envname("DIPTYCH_WARMUP");
  verb->add_option("--warmup-steps", flags->warmup_steps,
                   "timesteps of a warm-up [those of the request]")
      ->type_name("N")
      ->envname("DIPTYCH_WARMUP_STEPS");
  add_probe_flags(*verb, *flags);
  add_dataset_flags(*verb, *flags);
  verb->add_option("--json", flags->json,
                   "a .json (replaced if it exists); -: on stdout, instead of the table")
      ->type_name("FILE")
      ->check(path_problem)
      ->envname("DIPTYCH_BENCH_JSON");
  verb->add_option("--save-dir", flags->save_dir,
                   "folder for the pictures, videos, or the text of answers; created if missing")
      ->type_name("DIR")
      ->check(path_problem)
      ->envname("DIPTYCH_SAVE_DIR");
  add_request_flags(*verb, *flags, takes_field);
  verb->add_flag("--check-config", flags->check_config,
                 "check flags, stage config and inputs without loading weights, and stop")
      ->envname("DIPTYCH_CHECK_CONFIG");
  verb->get_option("--prompt")
      ->description(fmt::format("what to paint, change or answer; - reads it from stdin; may be "
                                "repeated [without -i: {}]",
                                kPrompt));
  verb->footer(kFooter);
  verb->callback([flags, verb, &run] {
    read_request_inputs(*verb, *flags);
    flags->sizes_origin = given_name(*verb, *verb->get_option("--sizes"));
    run = [flags](Log& log) { return bench(*flags, log); };
  });
}

}  // namespace diptych

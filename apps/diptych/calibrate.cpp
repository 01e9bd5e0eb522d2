// `diptych calibrate`: what TeaCache needs to know about a checkpoint, measured on pictures that
// are painted without a cache.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/diptych/demo.h"
#include "apps/diptych/prompt_files.h"
#include "apps/diptych/ranks.h"
#include "apps/diptych/request_flags.h"
#include "apps/diptych/request_sources.h"
#include "apps/diptych/result_files.h"
#include "apps/diptych/run_summary.h"
#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/messages.h"
#include "lib/batch/list.h"
#include "lib/config/task.h"
#include "lib/pipelines/registry.h"
#include "lib/request/files_read.h"
#include "lib/request/output_names.h"
#include "lib/request/request_checks.h"
#include "lib/sampling/step_cache/step_calibration.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// The verb paints its own requests: no cache, one picture per seed, no files.
bool takes_field(const Field& field) {
  using enum Scope;
  if (std::holds_alternative<TaskSlot>(field.slot)) return true;
  for (const Scope unused :
       {request, answer, enhancing, start, step_cache, report, encoding, output, parallel}) {
    if (field.scope == unused) return false;
  }
  return true;
}

// Varied in subject, style and amount of detail; what users ask for differs as much.
constexpr std::array<std::string_view, 5> kPrompts = {
    "A small red fox sits under an old oak tree in autumn, soft morning light.",
    "A city street at night in the rain, neon signs reflected on the wet asphalt, cars passing by.",
    "Portrait of an old fisherman with a white beard, oil painting with visible brush strokes.",
    "A minimalist poster: a blue circle above a yellow triangle on a white background.",
    "A wooden table with a bowl of fruit, a glass of water, an open book and a pair of glasses."};
constexpr std::array<std::string_view, 5> kInstructions = {
    "Turn it into a watercolour painting.", "Make it a snowy winter night.",
    "Remove the background and show the main subject on plain white.",
    "Change the dominant colour to deep blue.",
    "Add a small red balloon in the upper left corner."};

constexpr std::size_t kMostPictures = 1000;

constexpr std::array<double, 5> kThresholds = {0.05, 0.1, 0.2, 0.3, 0.5};

struct CalibrateFlags : RequestFlags {
  fs::path prompts, output;
  std::string pictures;  // "": one per prompt or input picture
};

// The texts of -p and --prompts, or the built-in ones if there are none.
std::vector<InputItem> choose_prompts(const CalibrateFlags& flags, const RunConfig& run) {
  std::vector<InputItem> prompts;
  std::ranges::copy_if(run.inputs, std::back_inserter(prompts), &InputItem::is_text);
  if (!flags.prompts.empty()) {
    require_extension(flags.prompts, {".txt"}, Setting::of("prompts"));
    for (const BatchItem& item : read_batch_list(flags.prompts).items) {
      if (!item.problem.empty()) throw InputError(item.problem);
      prompts.push_back({item.prompt.value(), {}});
    }
  }
  if (!prompts.empty()) return prompts;
  const bool edits = run.reads_images() && run.makes == MediaKind::picture;
  for (const std::string_view text : edits ? kInstructions : kPrompts)
    prompts.push_back({std::string(text), {}});
  return prompts;
}

void warn_of_unused(std::size_t count, std::size_t given, const char* what, Log& log) {
  if (given <= count) return;
  log.warning("--pictures {}: only the first of {} is used", count, counted(given, what));
}

// Pictures, unless another task is asked for.
const Task& painting_task(const Resolved& resolved, bool reads_pictures) {
  const RunConfig& run = resolved.options.run;
  const FamilyConfig& family = *run.family;
  if (!resolved.is_default("task")) {
    if (run.answers())
      throw InputError(Setting::of("task", run.task), "paints nothing; expected a task that does");
    return *family.find_task(run.task);
  }
  const InputCounts inputs{.pictures = reads_pictures ? 1 : 0};
  for (const MediaKind makes : {MediaKind::picture, MediaKind::clip}) {
    if (const Task* task = family.task_for(inputs, makes)) return *task;
  }
  throw InputError(Setting::of(reads_pictures ? "image" : "prompt"), "{} paints nothing from {}",
                   family.name, reads_pictures ? "pictures" : "texts alone");
}

// Prompts and pictures in turn, each request with a seed of its own.
std::vector<RunConfig> make_requests(const CalibrateFlags& flags, const Resolved& resolved,
                                     Log& log) {
  const RunConfig& run = resolved.options.run;
  if (run.reads_videos())
    throw InputError(Setting::of("video"), "calibrate reads texts and pictures, no videos");
  const std::vector<InputItem> prompts = choose_prompts(flags, run);
  std::vector<InputItem> images;
  std::ranges::copy_if(run.inputs, std::back_inserter(images), &InputItem::is_image);
  const std::size_t count = flags.pictures.empty()
                                ? std::max(prompts.size(), images.size())
                                : static_cast<std::size_t>(whole_number(
                                      flags.pictures, Setting::of("pictures"), 1, kMostPictures));
  if (count > kMostPictures) {
    throw InputError(Setting::of("prompts"),
                     "{} pictures, expected at most {}; --pictures N takes the first", count,
                     kMostPictures);
  }
  if (!flags.prompts.empty() || images.size() < run.inputs.size())
    warn_of_unused(count, prompts.size(), "prompt", log);
  warn_of_unused(count, images.size(), "input picture", log);
  if (run.sampling.seed > std::numeric_limits<std::uint64_t>::max() - count)
    throw InputError(Setting::of("seed"), "{} + {} does not fit in 64 bits", run.sampling.seed,
                     count);
  const Task& task = painting_task(resolved, !images.empty());
  std::vector<RunConfig> requests(count, run);
  for (std::size_t i = 0; i < count; ++i) {
    requests[i].sampling.seed += i;
    requests[i].sampling.batch_count = 1;
    requests[i].cache_mode = StepCacheMode::none;
    set_task(requests[i], task);
    requests[i].inputs.clear();
    if (!images.empty()) requests[i].inputs.push_back(images[i % images.size()]);
    requests[i].inputs.push_back(prompts[i % prompts.size()]);
  }
  return requests;
}

// Checked now, not after hours of painting.
void require_samples(const StepCalibrator& calibrator, const JobGroup& jobs) {
  std::size_t samples = 0;
  for (const Job* job : jobs) samples += calibrator.most_samples(*job);
  if (samples >= StepCalibration::kLeastSamples) return;
  throw InputError(Setting::of("steps"),
                   "{} for {} give at most {}, expected at least {}; more steps or prompts",
                   jobs.front()->config().sampling.steps, counted(jobs.size(), "picture"),
                   counted(samples, "sample"), StepCalibration::kLeastSamples);
}

fs::path choose_output(const CalibrateFlags& flags, const Resolved& resolved) {
  fs::path output = flags.output;
  if (output.empty()) {
    const fs::path& model = resolved.options.run.model;
    if (model.empty() || resolved.uses_demo) {
      throw InputError(Setting::absent("output"), "not given; expected a file, as {} keeps none",
                       model.empty() ? "--load-format dummy" : "the demo");
    }
    output = model / kCalibrationName;
  }
  const Setting setting = Setting::of("output");
  require_extension(output, {".json"}, setting);
  check_not_an_input(resolved.options.run, output, setting);
  require_writable(output, setting);
  return output;
}

void print_result(const StepRecording& recording, const StepCalibration& calibration) {
  fmt::print("{}, {}, {}\n", counted(recording.pictures.size(), "picture"),
             counted(static_cast<std::size_t>(recording.steps()), "step"),
             counted(calibration.samples.size(), "sample"));
  fmt::print("coefficients, degree 4 to 0: {:.6g}\n", fmt::join(calibration.coefficients, ", "));
  fmt::print("explained variance: {:.4f}\n", calibration.explained_variance());
  fmt::print("--cache-threshold  steps computed (estimate)\n");
  for (const double threshold : kThresholds) {
    const auto computed =
        static_cast<double>(recording.computed_steps(threshold, calibration.coefficients));
    fmt::print("{:<17}  {:.0f} of {}, {:.0f} %\n", threshold, computed, recording.steps(),
               100 * computed / static_cast<double>(recording.steps()));
  }
}

int start(const CalibrateFlags& flags, Resolved& resolved, Log& log) {
  Options& options = resolved.options;
  require_meaning(resolved, "--");
  read_stdin_and_files(options.run.inputs);
  require_model(options.run);
  const std::vector<RunConfig> requests = make_requests(flags, resolved, log);
  for (const RunConfig& request : requests) {
    options.run = request;
    require_complete(options);
  }
  const fs::path output = choose_output(flags, resolved);
  if (resolved.uses_demo) log.info("{}", demo_notice(options.run));
  const auto session = find_family(options.run.pipeline).open(options.run, log);
  StepCalibrator* calibrator = session->capabilities().calibrator;
  if (calibrator == nullptr)
    throw InputError("calibrate: pipeline {} has no step calibration", options.run.pipeline);
  std::vector<std::unique_ptr<Job>> made;
  JobGroup jobs;
  for (const RunConfig& request : requests) {
    made.push_back(session->make_job(request));
    jobs.push_back(made.back().get());
  }
  require_samples(*calibrator, jobs);
  if (flags.check_config) {
    for (Job* job : jobs) job->read_inputs();
    fmt::print("configuration: valid\n");
    return 0;
  }
  Progress progress(log, options.progress);
  const StepRecording recording = calibrator->record_steps(jobs, progress);
  const Report report = session->report();
  const auto calibration = StepCalibration::fit(
      recording.changes, StepCalibration::as_loaded(report.weights_hash, options.run.quantization));
  calibration.write(output);
  print_result(recording, calibration);
  print_path(output);
  log.info("{}", stage_times(report));
  return 0;
}

int calibrate(const CalibrateFlags& flags, Log& log) {
  Resolved resolved = resolve_request(flags, log, takes_field);
  // A stage config may set it for `generate`.
  if (std::exchange(resolved.options.enhance.on, false))
    log.warning("enhance_prompt has no effect on this verb, which measures prompts as they are");
  if (flags.print_config) {
    fmt::print("{}", config_table(resolved));
    return 0;
  }
  return with_places(resolved, [&] {
    require_undivided(resolved.options.run);
    return start(flags, resolved, log);
  });
}

constexpr const char* kFooter =
    "Paints without a cache and measures how much the output of the transformer changes from\n"
    "step to step for a given change of its input. The polynomial of this goes into FILE,\n"
    "where `generate --cache-mode teacache` looks for it, together with the hash of the\n"
    "weights: a file measured on other weights is refused. Use the size, steps and guidance\n"
    "that you paint with.\n"
    "Each -p, each line of --prompts and each -i is used in turn, with seeds counting up;\n"
    "without any prompt, five built-in ones are used. The table says how many of the measured\n"
    "steps TeaCache would compute; `generate --cache-report` measures a picture of yours.\n"
    "Examples:\n"
    "  diptych calibrate -m {model}\n"
    "  diptych calibrate -m {model} --size 512x512 --steps 30 --prompts prompts.txt\n"
    "  diptych calibrate -m {model} -i room.jpg -i street.jpg -p \"make it night\" -o e.json\n"
    "  diptych calibrate -m Wan2.2-T2V-A14B-Diffusers --task t2v --size 832x480\n"
    "  diptych generate -m {model} -p \"a cup of tea\" --cache-mode teacache --cache-report";

}  // namespace

void add_calibrate(CLI::App& app, Run& run) {
  CLI::App* verb =
      app.add_subcommand("calibrate", "measure what --cache-mode teacache needs to know");
  const auto flags = std::make_shared<CalibrateFlags>();
  verb->add_option(
          "--prompts", flags->prompts,
          "a .txt with a prompt a line; empty lines and lines that begin with # are skipped")
      ->type_name("FILE")
      ->check(path_problem)
      ->envname("DIPTYCH_PROMPTS");
  verb->add_option("--pictures", flags->pictures,
                   "pictures to paint [one per prompt or input picture]")
      ->type_name("N")
      ->envname("DIPTYCH_PICTURES");
  verb->add_option(
          "-o,--output", flags->output,
          fmt::format("a .json (replaced if it exists) [{} of the checkpoint]", kCalibrationName))
      ->type_name("FILE")
      ->check(path_problem);
  add_request_flags(*verb, *flags, takes_field);
  verb->add_flag("--check-config", flags->check_config,
                 "check flags, stage config and inputs without loading weights, and stop")
      ->envname("DIPTYCH_CHECK_CONFIG");
  verb->get_option("--prompt")
      ->description("what to paint or change; - reads it from stdin; may be repeated");
  verb->get_option("--image")->description(
      "a picture to edit; - reads it from stdin; may be repeated");
  verb->footer(kFooter);
  verb->callback([flags, verb, &run] {
    read_request_inputs(*verb, *flags);
    run = [flags](Log& log) { return calibrate(*flags, log); };
  });
}

}  // namespace diptych

// `diptych batch`: a list of requests, one loaded model.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/diptych/batch/run.h"
#include "apps/diptych/demo.h"
#include "apps/diptych/enhancer.h"
#include "apps/diptych/failure.h"
#include "apps/diptych/ranks.h"
#include "apps/diptych/request_flags.h"
#include "apps/diptych/result_files.h"
#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/base/stdin.h"
#include "lib/batch/list.h"
#include "lib/batch/plan.h"
#include "lib/batch/shards.h"
#include "lib/pipelines/registry.h"
#include "lib/request/enhanced_prompt.h"
#include "lib/request/request_checks.h"
#include "lib/runtime/comm.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// Each item names its own files.
bool takes_field(const Field& field) {
  return field.scope != Scope::output && field.scope != Scope::parallel;
}

constexpr const char* kShardFlag = "--shard";
constexpr std::int64_t kMostTogether = 1024;

struct BatchFlags : RequestFlags {
  fs::path list, output_dir;
  std::string batch_size = "1";
  std::optional<std::string> shard;
  bool resume = false;
};

void log_list(const BatchList& list, const fs::path& file, Log& log) {
  const std::string skipped = list.skipped_lines == 0
                                  ? ""
                                  : fmt::format("; {} that {} empty or a comment skipped",
                                                counted(list.skipped_lines, "line"),
                                                list.skipped_lines == 1 ? "is" : "are");
  log.info("{}: {}{}", file.string(), counted(list.items.size(), "item"), skipped);
}

// Names of outputs that say another format than the one asked for, for all that has no name.
void warn_of_other_formats(const BatchList& list, const Options& defaults, Log& log) {
  if (!defaults.format) return;
  const auto is_other = [&](const BatchItem& item) {
    const auto picture = picture_format(defaults.format);
    const auto clip = clip_format(defaults.format);
    return !item.output.empty() && !(picture && format_of_name(item.output) == picture) &&
           !(clip && clip_format_of_name(item.output) == clip);
  };
  const auto others = std::ranges::count_if(list.items, is_other);
  if (others == 0) return;
  log.warning("--format {}: has no effect on {} with an output of another extension",
              name_of(*defaults.format), counted(static_cast<std::size_t>(others), "item"));
}

// Why the item cannot run, as far as this is known without weights; "" if nothing is wrong.
std::string problem_of(const PlannedItem& item, const Resolved& defaults, Session* session,
                       PromptEnhancers& enhancers, Log& log) {
  if (!item.error.empty()) return item.error;
  try {
    const std::unique_ptr<Job> job = session->make_job(item.options.run);
    require_encodable(item.options, *job);
    job->read_inputs();
    if (enhances(item.options)) enhancer_of(item.options, enhancers, log).check(item.options);
    return {};
  } catch (const InputError& error) {
    return item_error(item, defaults, error);
  }
}

int check_items(const std::vector<PlannedItem>& items, const Resolved& defaults,
                const fs::path& file, Log& log) {
  const auto able = std::ranges::find(items, std::string(), &PlannedItem::error);
  std::unique_ptr<Session> session;
  if (able != items.end()) session = open_session(defaults, *able, log);
  std::size_t wrong = 0;
  PromptEnhancers enhancers;
  for (const PlannedItem& item : items) {
    check_interrupted();
    const std::string problem = problem_of(item, defaults, session.get(), enhancers, log);
    if (problem.empty()) continue;
    ++wrong;
    log.write(LogLevel::error, fmt::format("{}: {}", item.id, problem));
  }
  if (wrong > 0) {
    throw InputError("{}: {} of {} cannot run", file.string(), wrong,
                     counted(items.size(), "item"));
  }
  fmt::print("{}: valid\n", file.string());
  return kDone;
}

Shard choose_shard(const BatchFlags& flags) {
  if (flags.shard) return parse_shard(*flags.shard, Setting::of("shard"));
  const ParallelDegrees degrees;  // every request is the work of one process
  return shard_of_environment(environment, degrees.ranks_per_request());
}

void log_shard(const Shard& shard, std::size_t items, Log& log) {
  const bool launched = shard.origin.ends_with("SIZE");  // by torchrun or MPI
  if (shard.origin != kShardFlag && !launched && is_slurm_job_script(environment) &&
      environment("SLURM_NTASKS") != "1") {
    log.info(
        "SLURM_NTASKS is {}, but SLURM_STEP_ID is not set: a job script without srun is one "
        "process, and takes what all tasks would share; srun starts one for each",
        *environment("SLURM_NTASKS"));
  }
  if (shard.count == 1 || shard.origin == kShardFlag) return;
  log.info("shard {} of {}, from {}; --shard 0/1 takes the whole list", shard.text(),
           counted(items, "item"), shard.origin);
}

void choose_device(RunConfig& model, Log& log) {
  const std::size_t gpus = list_gpus().size();
  const auto device = device_of_rank(model.device, gpus, environment);
  if (!device) return;
  log.info("{}: chosen from {} GPUs by this process's rank on the host", device_name(*device),
           gpus);
  model.device = *device;
}

BatchSettings read_settings(const BatchFlags& flags, const Resolved& defaults) {
  BatchSettings settings;
  settings.shard = choose_shard(flags);
  settings.resume = flags.resume;
  settings.batch_size = static_cast<std::size_t>(
      whole_number(flags.batch_size, Setting::of("batch_size"), 1, kMostTogether));
  settings.progress = defaults.options.progress;
  settings.defaults = defaults;
  return settings;
}

int start(const BatchFlags& flags, Resolved& defaults, Log& log) {
  require_undivided(defaults.options.run);
  read_stdin_and_files(defaults.options.run.inputs, flags.list == kStdin);
  const BatchList list = read_batch_list(flags.list, fields_of(defaults.options));
  const std::vector<InputItem>& inputs = defaults.options.run.inputs;
  if (list.prompts_only && std::ranges::any_of(inputs, &InputItem::is_text)) {
    throw InputError(Setting::of("prompt"), "every line of {} is one; expected none",
                     flags.list.string());
  }
  std::vector<PlannedItem> items = plan_batch(list, defaults, flags.output_dir);
  require_model(defaults.options.run);
  BatchSettings settings = read_settings(flags, defaults);
  if (flags.check_config) {
    check_list_is_kept(flags.list, flags.output_dir, settings.shard, items);
    const BatchFolder folder(flags.output_dir, settings.shard, settings.resume);  // can it be had?
    log_list(list, flags.list, log);
    choose_device(settings.defaults.options.run, log);
    return check_items(items, settings.defaults, flags.list, log);
  }
  const std::size_t all = items.size();
  std::erase_if(items,
                [&](const PlannedItem& item) { return !settings.shard.contains(item.number); });
  check_list_is_kept(flags.list, flags.output_dir, settings.shard, items);
  // Errors of the command come before the messages about the run.
  std::optional<BatchFolder> folder;
  if (!items.empty()) folder.emplace(flags.output_dir, settings.shard, settings.resume);
  log_list(list, flags.list, log);
  warn_of_other_formats(list, defaults.options, log);
  if (defaults.uses_demo) note_demo(defaults.options.run, log);
  log_shard(settings.shard, all, log);
  if (!folder) {
    log.info("the list has no item for shard {}", settings.shard.text());
    return kDone;
  }
  choose_device(settings.defaults.options.run, log);
  return run_batch(items, settings, *folder, log);
}

int batch(const BatchFlags& flags, Log& log) {
  Resolved defaults =
      resolve_request(flags.sources(takes_field), log, takes_field, resolve_sources);
  if (flags.print_config) {
    fmt::print("{}", config_table(defaults));
    return kDone;
  }
  return with_places(defaults, [&] { return start(flags, defaults, log); });
}

constexpr const char* kFooter =
    "LIST is a .txt (one prompt per line; empty lines and lines that begin with # are\n"
    "skipped), a .jsonl (one object per line) or a .yaml (a list of maps, or a map with\n"
    "`items`). With - it is read from stdin: as .jsonl if its first character that is not\n"
    "blank is {, else as .txt. Keys of an item: prompt, image and video (a path or several),\n"
    "inputs ([{image: a.png}, {text: ...}], any order), id (text; a number counts as its text),\n"
    "output (a name below DIR), think_output, contact_sheet, trace, trace_filter, and every flag\n"
    "of a request with _ for -: seed, size, steps, cfg_scale, task, think, ... The flags above\n"
    "set what an item leaves open. Pictures, videos and noise are looked for next to LIST. A\n"
    "prompt \"-\" in the list is that text; only --prompt - reads stdin.\n"
    "Without output, item k writes 000k.png (k from 0; 000k-000.png, ... with batch_count),\n"
    "000k.mp4 for a video, or the extension of --format, and 000k.txt for an answer.\n"
    "DIR/manifest.jsonl gets one line per item: id, status,\n"
    "seconds, seed, device, dtype, quantization, kernels and attention as requested, files\n"
    "with sha256, error, the text of an answer or plan and why it ends (finish_reason: stop,\n"
    "length). With --enhance-prompt all prompts are rewritten first; the line has prompt, the\n"
    "one that is painted, and prompt_given.\n"
    "A list with an unknown key, with two items for one file, or with an output that a link\n"
    "leads out of DIR, is refused (exit code 2). An item that fails is counted and the others\n"
    "go on (exit code 4). If DIR or its manifest is moved or removed, the run stops (exit\n"
    "code 3).\n"
    "--batch-size N paints up to N consecutive items with equal steps and guidance in one\n"
    "forward. The pictures are those of one by one, except for the last bits in bfloat16,\n"
    "where products of other sizes round differently.\n"
    "--resume keeps complete results in DIR and runs new, changed and failed items. If every\n"
    "item failed, a run without it begins anew.\n"
    "--shard I/N takes items I, I+N, I+2N, ... and writes manifest-I-of-N.jsonl. Without it,\n"
    "SLURM_ARRAY_TASK_ID and SLURM_PROCID, torchrun's RANK and the ranks of MPI are used, and\n"
    "LOCAL_RANK or its like picks the GPU. Ctrl-C drops the running item.\n"
    "Examples:\n"
    "  diptych batch prompts.txt -o out -m {model} --size 512x512 --batch-size 4\n"
    "  diptych batch prompts.txt -o out -m {model} --size 512x512 --batch-size 4 --resume\n"
    "  diptych batch edits.jsonl -o out -m {model} --think\n"
    "    {\"image\": \"room.jpg\", \"prompt\": \"remove the chair\", \"output\": \"room.png\"}\n"
    "    {\"task\": \"understand\", \"image\": \"street.jpg\", \"prompt\": \"how many cars?\"}\n"
    "  srun -n 8 --gpus-per-task 1 diptych batch prompts.txt -o out -m {model}";

}  // namespace

void add_batch(CLI::App& app, Run& run) {
  CLI::App* verb = app.add_subcommand("batch", "many requests from a list, one loaded model");
  const auto flags = std::make_shared<BatchFlags>();
  verb->add_option("list", flags->list, "the requests: .txt, .jsonl or .yaml; - for stdin")
      ->required()
      ->check(path_problem);
  verb->add_option("-o,--output-dir", flags->output_dir,
                   "folder for the files and the manifest; created if missing")
      ->type_name("DIR")
      ->required()
      ->check(path_problem)
      ->envname("DIPTYCH_OUTPUT_DIR");
  verb->add_flag("--resume", flags->resume, "continue the run that DIR holds")
      ->envname("DIPTYCH_RESUME");
  verb->add_option("--batch-size", flags->batch_size, "most items painted in one forward [1]")
      ->type_name("N")
      ->envname("DIPTYCH_BATCH_SIZE");
  verb->add_option("--shard", flags->shard, "this process's part of the list, such as 0/4")
      ->type_name("I/N")
      ->envname("DIPTYCH_SHARD");
  add_request_flags(*verb, *flags, takes_field);
  verb->add_flag("--check-config", flags->check_config,
                 "check the list and every item without loading weights, and stop; 2 where one is "
                 "wrong")
      ->envname("DIPTYCH_CHECK_CONFIG");
  verb->footer(kFooter);
  verb->callback([flags, verb, &run] {
    read_request_inputs(*verb, *flags);
    run = [flags](Log& log) { return batch(*flags, log); };
  });
}

}  // namespace diptych

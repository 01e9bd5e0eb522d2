// `diptych batch`: a list of requests, one loaded model.
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "apps/diptych/batch/run.h"
#include "apps/diptych/demo.h"
#include "apps/diptych/enhancer.h"
#include "apps/diptych/failure.h"
#include "apps/diptych/prompt_files.h"
#include "apps/diptych/ranks.h"
#include "apps/diptych/request_flags.h"
#include "apps/diptych/request_sources.h"
#include "apps/diptych/result_files.h"
#include "apps/diptych/verbs.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/base/stdin.h"
#include "lib/batch/list.h"
#include "lib/batch/plan.h"
#include "lib/batch/shards.h"
#include "lib/config/family_fields.h"
#include "lib/pipelines/registry.h"
#include "lib/request/enhanced_prompt.h"
#include "lib/request/request_checks.h"
#include "lib/runtime/ranks.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

// Each item names its own files.
bool takes_field(const Field& field) {
  return field.scope != Scope::output;
}

constexpr const char* kShardFlag = "--shard";

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
    const bool json = defaults.format == ResultFormat::json && is_named_json(item.output);
    return !item.output.empty() && !(picture && format_of_name(item.output) == picture) &&
           !(clip && clip_format_of_name(item.output) == clip) && !json;
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

ListPart choose_part(const BatchFlags& flags, std::size_t ranks_per_item) {
  const Environment environment = process_environment();
  if (!flags.shard) return part_of_environment(environment, ranks_per_item);
  const ListPart part = {parse_shard(*flags.shard, Setting::of("shard")), {}};
  const auto process = process_of_environment(environment);
  if (ranks_per_item > 1 && process && process->count != ranks_per_item) {
    throw InputError(Setting::of("shard"),
                     "is a part of the list for {} processes, which share each item; found {} ({})",
                     ranks_per_item, process->count, process->origin);
  }
  return part;
}

void log_part(const ListPart& part, std::size_t items, Log& log) {
  const Environment environment = process_environment();
  const Shard& shard = part.shard;
  const bool launched = part.group.count > 1;
  if (shard.origin != kShardFlag && !launched && is_slurm_job_script(environment) &&
      environment("SLURM_NTASKS") != "1") {
    log.info(
        "SLURM_NTASKS is {}, but SLURM_STEP_ID is not set: a job script without srun is one "
        "process, and takes what all tasks would share; srun starts one for each",
        *environment("SLURM_NTASKS"));
  }
  if (shard.origin == kShardFlag) return;
  if (shard.count > 1) {
    log.info("shard {} of {}, from {}; --shard 0/1 takes the whole list", shard.text(),
             counted(items, "item"), shard.origin);
  }
  if (launched) {
    log.info("part {} of {}, from {}; all write {}", part.group.text(),
             shard.count > 1 ? "it" : counted(items, "item"), part.group.origin,
             shard.manifest_name());
  }
}

// The items that this process, and those that share them with it, work on: the forwards of the list
// in turn. So it does not depend on the number of processes which items share a forward, nor on
// what is finished which process has them.
std::vector<bool> own_items(const std::vector<PlannedItem>& items, const Shard& group,
                            const BatchSettings& settings) {
  std::vector<bool> own(items.size(), true);
  if (group.count == 1) return own;
  const auto able = std::ranges::find(items, std::string(), &PlannedItem::error);
  std::unique_ptr<Session> session;
  Log quiet(LogLevel::quiet);  // the session that runs them says the same
  if (settings.batch_size > 1 && able != items.end())
    session = open_session(settings.defaults, *able, quiet);
  for (std::size_t i = 0; i < items.size(); ++i) own[i] = group.contains(i);  // those that fail
  const auto forwards = plan_forwards(items, settings.batch_size, session.get());
  for (std::size_t i = 0; i < forwards.size(); ++i) {
    for (const std::size_t member : forwards[i]) own[member] = group.contains(i);
  }
  return own;
}

// The ids of the items that other processes record.
std::set<std::string> ids_of_others(const std::vector<PlannedItem>& items,
                                    const std::vector<bool>& own) {
  std::set<std::string> others;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!own[i]) others.insert(items[i].id);
  }
  return others;
}

// Of ranks that share requests, those that write open it. What keeps the first one from it ends all
// before another one finds its records there.
void open_folder(std::optional<BatchFolder>& folder, const std::vector<PlannedItem>& items,
                 const BatchFlags& flags, const ListPart& part, const BatchSettings& settings) {
  const std::set<std::string> others = ids_of_others(items, settings.own);
  const auto open = [&] {
    folder.emplace(flags.output_dir, part.shard, settings.resume,
                   part.group.count > 1 ? &others : nullptr);
    return std::string("open");
  };
  const RunConfig& run = settings.defaults.options.run;
  if (run.ranks != nullptr) run.ranks->common_text("folder", open);
  if (!folder && writes_results(run)) open();
}

// What each process has drawn for itself, and where only the one that writes says where.
void agree(std::vector<PlannedItem>& items, const RunConfig& defaults) {
  if (defaults.ranks == nullptr) return;
  const auto of_leader = [&] {
    std::string seeds;
    for (const PlannedItem& item : items)
      seeds += fmt::format("{} ", item.options.run.sampling.seed);
    return seeds;
  };
  std::istringstream seeds(defaults.ranks->group_text("seeds", of_leader));
  for (PlannedItem& item : items) {
    RunConfig& run = item.options.run;
    seeds >> run.sampling.seed;
    if (defaults.ranks->comm().cfg.size > 1) run.cfg_mode = CfgMode::sequential;
    if (writes_results(defaults)) continue;
    run.trace.clear();
    item.options.think_output.clear();
    item.options.contact_sheet.clear();
  }
}

void choose_device(RunConfig& model) {
  if (const auto device = device_of_rank(model.device, list_gpus().size(), process_environment()))
    model.device = *device;
}

void log_device(const RunConfig& asked, const RunConfig& chosen, Log& log) {
  if (device_name(asked.device) == device_name(chosen.device)) return;
  log.info("{}: chosen from {} GPUs by this process's rank on the host", device_name(chosen.device),
           list_gpus().size());
}

BatchSettings read_settings(const BatchFlags& flags, const Resolved& defaults) {
  BatchSettings settings;
  settings.resume = flags.resume;
  settings.batch_size = static_cast<std::size_t>(
      whole_number(flags.batch_size, Setting::of("batch_size"), 1, kMostTogether));
  settings.progress = defaults.options.progress;
  settings.prints_paths = writes_results(defaults.options.run);
  settings.defaults = defaults;
  choose_device(settings.defaults.options.run);
  return settings;
}

int start(const BatchFlags& flags, Resolved& defaults, Log& log) {
  const RunConfig& common = defaults.options.run;
  const ListPart part = choose_part(flags, ranks_per_item(common));
  if (part.group.index > 0) wait_silently();
  if (common.ranks != nullptr && flags.list == kStdin)
    throw InputError("-: stdin has no meaning for processes that share its items; expected a file");
  read_stdin_and_files(defaults.options.run.inputs, flags.list == kStdin);
  const BatchList list = read_batch_list(flags.list, fields_of(defaults.options));
  if (list.prompts_only && std::ranges::any_of(common.inputs, &InputItem::is_text)) {
    throw InputError(Setting::of("prompt"), "every line of {} is one; expected none",
                     flags.list.string());
  }
  std::vector<PlannedItem> items =
      plan_batch(list, defaults, flags.output_dir,
                 [&](const RunConfig& item) { require_divisible(item, common); });
  agree(items, common);
  require_model(common);
  BatchSettings settings = read_settings(flags, defaults);
  settings.shard = part.shard;
  check_list_is_kept(flags.list, flags.output_dir, part.shard, items);
  std::optional<BatchFolder> folder;
  if (flags.check_config) {
    settings.own = own_items(items, part.group, settings);
    open_folder(folder, items, flags, part, settings);  // can it be had?
    log_list(list, flags.list, log);
    log_device(common, settings.defaults.options.run, log);
    return check_items(items, settings.defaults, flags.list, log);
  }
  const std::size_t all = items.size();
  std::erase_if(items, [&](const PlannedItem& item) { return !part.shard.contains(item.number); });
  settings.own = own_items(items, part.group, settings);
  const bool has_items = std::ranges::find(settings.own, true) != settings.own.end();
  // Errors of the command come before the messages about the run.
  if (has_items || common.ranks != nullptr) open_folder(folder, items, flags, part, settings);
  log_list(list, flags.list, log);
  warn_of_other_formats(list, defaults.options, log);
  if (defaults.uses_demo) note_demo(defaults.options.run, log);
  log_part(part, all, log);
  if (!has_items) {
    log.info("the list has no item for {} {}", part.group.count > 1 ? "part" : "shard",
             (part.group.count > 1 ? part.group : part.shard).text());
    return kDone;
  }
  log_device(common, settings.defaults.options.run, log);
  return run_batch(items, settings, folder ? &*folder : nullptr, log);
}

int batch(const BatchFlags& flags, Log& log) {
  Resolved defaults = resolve_request(flags, log, takes_field, resolve_sources);
  if (flags.print_config) {
    fmt::print("{}", config_table(defaults));
    return kDone;
  }
  return with_places(defaults, [&] {
    const std::shared_ptr<Ranks> ranks =
        flags.check_config ? nullptr : meet_list_ranks(defaults, log);
    return as_rank(ranks, [&] { return start(flags, defaults, log); });
  });
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
    "000k.mp4 for a video, 000k.txt for an answer, or the extension of --format. An answer named\n"
    ".json has its record with it, for inspect --replay.\n"
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
    "forward, with some models only those of one size that read text alone. The results are\n"
    "those of one by one, except for the last bits in bfloat16, where products of other sizes\n"
    "round differently.\n"
    "--resume keeps complete results in DIR and runs new, changed and failed items. If every\n"
    "item failed, a run without it begins anew.\n"
    "--shard I/N takes items I, I+N, I+2N, ... and writes manifest-I-of-N.jsonl, as the tasks\n"
    "of a Slurm array do (SLURM_ARRAY_TASK_ID). Processes of torchrun, mpirun or srun take turns\n"
    "at the list and write one manifest; LOCAL_RANK or its like picks the GPU. With\n"
    "--cfg-parallel-size, --ulysses-degree or --ring-degree so many of them share each item.\n"
    "Ctrl-C drops the running item.\n"
    "Examples:\n"
    "  diptych batch prompts.txt -o out -m {model} --size 512x512 --batch-size 4\n"
    "  diptych batch prompts.txt -o out -m {model} --size 512x512 --batch-size 4 --resume\n"
    "  diptych batch edits.jsonl -o out -m {model} --think\n"
    "    {\"image\": \"room.jpg\", \"prompt\": \"remove the chair\", \"output\": \"room.png\"}\n"
    "    {\"task\": \"understand\", \"image\": \"street.jpg\", \"prompt\": \"how many cars?\"}\n"
    "  srun -n 8 --gpus-per-task 1 diptych batch prompts.txt -o out -m {model}\n"
    "  torchrun --no-python --nproc-per-node 8 diptych batch prompts.txt -o out -m {model} \\\n"
    "    --cfg-parallel-size 2";

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
      ->check(folder_problem)
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

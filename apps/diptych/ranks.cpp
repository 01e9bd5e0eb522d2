#include "apps/diptych/ranks.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/diptych/degrees.h"
#include "apps/diptych/failure.h"
#include "lib/base/environment.h"
#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/base/stdin.h"
#include "lib/batch/shards.h"
#include "lib/config/family_fields.h"
#include "lib/config/words.h"
#include "lib/runtime/handoff.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

constexpr std::uint16_t kPort = 29500;  // torchrun's

// Where the ranks meet: by torchrun's variables, or on rank 0's host.
Launch launch_of(const Shard& process) {
  const Environment environment = process_environment();
  Launch launch{process.index, process.count, "127.0.0.1", kPort};
  for (const char* name : {"MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR"}) {
    const auto host = environment(name);
    if (!host || host->empty()) continue;
    launch.host = *host;
    break;
  }
  if (const auto port = environment("MASTER_PORT"); port && !port->empty()) {
    const auto [end, error] =
        std::from_chars(port->data(), port->data() + port->size(), launch.port);
    if (error != std::errc{} || end != port->data() + port->size() || launch.port == 0)
      throw InputError("MASTER_PORT: {} is no port, a number from 1 to 65535", in_quotes(*port));
  }
  launch.launcher_listens = environment("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.attempt = environment("TORCHELASTIC_RESTART_COUNT").value_or(launch.attempt);
  return launch;
}

// Processes that share a request and are one stage of it each: with --read-device, unless this one
// is alone and has both.
std::size_t stages_of(const RunConfig& run) {
  const auto process = process_of_environment(process_environment());
  return run.read_device && process && process->count > 1 ? 2 : 1;
}

// Of two stages that are a process each.
void require_stages_alone(const RunConfig& run, const ParallelDegrees& degrees) {
  const Setting apart = Setting::of("read_device", device_name(*run.read_device));
  if (run.answers())
    throw InputError(apart, SettingText{Setting::of("task", run.task),
                                        " writes a text, which is the work of one process"});
  if (degrees.divides_steps())
    throw InputError(apart, "the stage that paints is one process, found {} (cfg {}, rows {})",
                     degrees.cfg * degrees.of_rows(), degrees.cfg, degrees.of_rows());
  if (run.connector == Connector::in_process)
    throw InputError(Setting::of("connector", "in_process"),
                     "the stages are two processes; expected shared_memory or c10d");
}

// Of a request, or of an item of a list.
void require_divisible(const RunConfig& run, const ParallelDegrees& degrees) {
  const std::size_t shared = degrees.ranks_per_request();
  if (const auto why = why_one_branch(run); why && degrees.cfg > 1)
    throw InputError(Setting::of("cfg_parallel_size", std::to_string(degrees.cfg)), *why);
  if (const auto why = why_whole_rows(run); why && degrees.ulysses > 1)
    throw InputError(Setting::of("ulysses_degree", std::to_string(degrees.ulysses)), *why);
  if (const auto why = why_whole_rows(run); why && degrees.ring > 1)
    throw InputError(Setting::of("ring_degree", std::to_string(degrees.ring)), *why);
  if (degrees.stages > 1) require_stages_alone(run, degrees);
  if (degrees.cfg > 1 && run.cache_mode != StepCacheMode::none)
    throw InputError(Setting::of("cache_mode"),
                     "is for one process, which has all branches; expected --cfg-parallel-size 1");
  if (degrees.of_rows() > 1 && !run.trace.empty())
    throw InputError(
        Setting::of("trace"),
        "needs all rows in one process; expected a single one, or --cfg-parallel-size {}", shared);
}

void refuse_stdin(const RunConfig& run, const Shard& process) {
  for (const InputItem& item : run.inputs) {
    if (item.text == kStdin || item.file() == kStdin) {
      throw InputError("-: stdin has no meaning for {} processes ({}); expected a file",
                       process.count, process.origin);
    }
  }
}

// The one that was asked for, to which what is wrong with all is said.
const char* field_of_degrees(const RunConfig& run) {
  if (run.parallel.cfg) return "cfg_parallel_size";
  if (run.parallel.ulysses) return "ulysses_degree";
  return run.parallel.ring ? "ring_degree" : "cfg_parallel_size";
}

void check_degrees(const RunConfig& run, const ParallelDegrees& degrees, const Shard& process) {
  const std::size_t shared = degrees.ranks_per_request();
  require_divisible(run, degrees);
  const bool unguided = run.family->uses("cfg_parallel_size") && why_one_branch(run);
  if (shared == 1 && (run.answers() || unguided)) {
    throw InputError(Setting::of("cfg_parallel_size"),
                     "{} processes share one request ({}), and there is nothing to divide: {}",
                     process.count, process.origin,
                     run.answers() ? "a text is the work of one" : "guidance is off");
  }
  if (degrees.stages > 1 && shared != process.count)
    throw InputError(Setting::of("read_device", device_name(*run.read_device)),
                     "{} processes share one request ({}), but a stage that reads and one that "
                     "paints are the work of 2",
                     process.count, process.origin);
  if (shared != process.count)
    throw InputError(Setting::of(field_of_degrees(run)),
                     "{} processes share one request ({}); expected {}, for {}", process.count,
                     process.origin, shared, describe(degrees));
  refuse_stdin(run, process);
}

void require_branches_apart(const Resolved& resolved, const ParallelDegrees& degrees) {
  if (degrees.cfg == 1 || !asks_for_one_forward(resolved)) return;
  throw InputError(Setting::of("cfg_mode", "batched"),
                   "is for one process; the branches are divided among {}, as in sequential",
                   degrees.cfg);
}

// Whatever a process draws or chooses by itself.
void agree(RunConfig& run, Ranks& ranks) {
  SamplingConfig& sampling = run.sampling;
  if (!sampling.seed_drawn) return;
  const std::string seed = ranks.common_text("seed", [&] { return std::to_string(sampling.seed); });
  sampling.seed = std::stoull(seed);
}

constexpr int kWrongUse = 2;

// Ranks that chose from others would wait for each other without end.
void require_same_ways(Ranks& ranks, const std::vector<ParallelDegrees>& ways) {
  const std::string own = describe(ways);
  const std::string first = ranks.common_text("ways", [&] { return own; });
  if (own == first) return;
  if (!ranks.fail(kWrongUse)) throw OtherRankFailed{kWrongUse};
  const auto text = [](const std::string& all) { return all.empty() ? "nothing" : all; };
  throw InputError("rank {} may choose from other divisions than rank 0: {}; expected {}",
                   ranks.rank(), text(own), text(first));
}

// What is each rank's own: what it shows and writes, and where it computes.
bool may_differ(const Field& field) {
  using enum Scope;
  for (const Scope own : {display, output, report}) {
    if (field.scope == own) return true;
  }
  return field.name == "config" || std::holds_alternative<DeviceSlot>(field.slot) ||
         std::holds_alternative<FreeDeviceSlot>(field.slot);
}

// Hosts may have the files in other places, but for those that say what is asked for. Who paints
// alone needs the noise.
std::string common_text(const Field& field, const Options& options) {
  using enum Scope;
  const std::string text = value_text(field, options);
  const bool is_asked = field.scope == request || field.scope == enhancing;
  if (!std::holds_alternative<PathSlot>(field.slot) || is_asked) return text;
  return text.empty() || field.scope == start ? "" : "a file or folder";
}

// Name and value of everything in which ranks that share requests must agree.
nlohmann::json common_settings(const Options& options) {
  nlohmann::json settings = nlohmann::json::object();
  for (const Field& field : fields_of(options)) {
    if (!may_differ(field)) settings[std::string(field.name)] = common_text(field, options);
  }
  if (options.run.sampling.seed_drawn) settings["seed"] = "random";  // agree() makes it one
  std::string texts;
  for (const InputItem& input : options.run.inputs)
    texts += fmt::format("{}: {}\n", input_name(input.kind()), input.text);
  settings["prompt"] = texts;
  return settings;
}

// Different ones would make a picture that nobody asked for, or wait for each other without end.
// `settings`: texts by their names; `what`: they are.
void require_same(const std::string& what, const nlohmann::json& settings, Ranks& ranks) {
  using nlohmann::json;
  // Names of files may be no UTF-8.
  const std::string text_of_own = settings.dump(-1, ' ', false, json::error_handler_t::replace);
  const json own = json::parse(text_of_own),
             first = json::parse(ranks.common_text(what, [&] { return text_of_own; }));
  if (own == first) return;
  if (!ranks.fail(kWrongUse)) throw OtherRankFailed{kWrongUse};
  for (const auto& [name, value] : own.items()) {
    const auto text = [](const json& setting) {
      const std::string value_there = setting.is_string() ? setting.get<std::string>() : "";
      return value_there.empty() ? "nothing" : shortened(value_there);
    };
    if (!first.contains(name) || first.at(name) != value)
      throw InputError(Setting::of(name), "{} in rank {}, but {} in rank 0; expected the same",
                       text(value), ranks.rank(), text(first.value(name, json())));
  }
  throw InputError("rank {} has other settings than rank 0; expected the same", ranks.rank());
}

// Meets the others. The settings become those of this rank.
void meet(Resolved& resolved, const Shard& process, const ParallelDegrees& degrees, Log& log) {
  if (process.index > 0) wait_silently();
  RunConfig& run = resolved.options.run;
  const Comm comm = Comm::of_rank(process.index, process.count, degrees);
  const bool apart = degrees.stages > 1;
  const bool all_on_gpus = run.device.kind != DeviceChoice::Kind::cpu &&
                           (!apart || run.read_device->kind != DeviceChoice::Kind::cpu);
  if (comm.stage.index == 1) run.device = *run.read_device;
  if (const auto device = device_of_rank(run.device, list_gpus().size(), process_environment()))
    run.device = *device;
  const at::Device device = resolve_device(run.device, log);
  if (!comm.leads()) {
    log.set_level(LogLevel::quiet);
    resolved.options.progress = ProgressStyle::none;
  }
  run.ranks =
      Ranks::meet(launch_of(process), degrees, device, all_on_gpus ? device : at::Device(at::kCPU));
  if (apart) run.stage_end = make_stage_end(run.ranks, run.connector);
  require_same("settings", common_settings(resolved.options), *run.ranks);
  agree(run, *run.ranks);
  if (degrees.cfg > 1) run.cfg_mode = CfgMode::sequential;
}

// Nothing is divided that nobody asked for: the processes then have items of their own.
ParallelDegrees degrees_of_items(const RunConfig& defaults) {
  return asked_degrees(defaults, stages_of(defaults));
}

constexpr fmt::format_string<std::int64_t&> kAlone =
    "{} processes are expected, and this one is alone; start them with torchrun, mpirun or srun";

// `why`: with a place for the number of processes.
void require_undivided(const RunConfig& run, fmt::format_string<std::int64_t&> why) {
  for (const auto& [degree, field] : {std::pair{run.parallel.cfg, "cfg_parallel_size"},
                                      std::pair{run.parallel.ulysses, "ulysses_degree"},
                                      std::pair{run.parallel.ring, "ring_degree"}}) {
    std::int64_t processes = degree.value_or(1);
    if (processes > 1) throw InputError(Setting::of(field), "{}", fmt::format(why, processes));
  }
}

void require_stages_together(const RunConfig& run) {
  if (run.read_device)
    throw InputError(Setting::of("read_device", device_name(*run.read_device)),
                     "two devices for one request are for generate, batch and bench; expected {}",
                     kSameDevice);
}

}  // namespace

bool writes_results(const RunConfig& run) {
  return run.ranks == nullptr || run.ranks->leads();
}

void require_undivided(const RunConfig& run) {
  require_undivided(run,
                    "{} processes for one request are for generate, batch and bench; expected 1");
  require_stages_together(run);
}

Meeting meet_ranks(Resolved& resolved, Log& log) {
  RunConfig& run = resolved.options.run;
  const auto process = process_of_environment(process_environment());
  if (!process) {
    require_undivided(run, kAlone);
    return {};
  }
  run.parallel.whole_cfg_mode = run.cfg_mode;
  const ParallelDegrees degrees = usual_degrees(resolved, process->count, stages_of(run));
  check_degrees(run, degrees, *process);
  require_branches_apart(resolved, degrees);
  meet(resolved, *process, degrees, log);
  if (degrees.stages > 1) {
    log.info("2 processes share this request: one reads, the other one paints ({})",
             name_of(run.connector));
    return {run.ranks, {}};
  }
  const std::vector<ParallelDegrees> ways = degrees_to_time(resolved);
  require_same_ways(*run.ranks, ways);
  log.info("{} processes share this request: {}{}", process->count, describe(degrees),
           ways.empty() ? "" : ", unless another division is faster");
  return {run.ranks, ways};
}

void require_same_flags(const RunConfig& run, const std::map<std::string, std::string>& flags) {
  if (run.ranks != nullptr) require_same("flags", flags, *run.ranks);
}

std::size_t ranks_per_item(const RunConfig& defaults) {
  return degrees_of_items(defaults).ranks_per_request();
}

std::shared_ptr<Ranks> meet_list_ranks(Resolved& defaults, Log& log) {
  RunConfig& run = defaults.options.run;
  run.parallel.whole_cfg_mode = run.cfg_mode;
  const ParallelDegrees degrees = degrees_of_items(run);
  if (degrees.ranks_per_request() == 1) return nullptr;
  const auto process = process_of_environment(process_environment());
  if (!process) require_undivided(run, kAlone);
  refuse_stdin(run, *process);
  require_branches_apart(defaults, degrees);
  meet(defaults, *process, degrees, log);
  if (degrees.stages > 1) {
    log.info(
        "{} processes share this list: {} for its items x 2, of which one reads and the other one "
        "paints ({})",
        process->count, run.ranks->comm().data.size, name_of(run.connector));
    return run.ranks;
  }
  log.info("{} processes share this list: {} items at a time, {} each", process->count,
           run.ranks->comm().data.size, describe(degrees));
  return run.ranks;
}

void require_divisible(const RunConfig& item, const RunConfig& defaults) {
  const ParallelDegrees degrees = degrees_of_items(defaults);
  require_divisible(item, degrees);
  const bool own_mode = item.cfg_mode != defaults.cfg_mode;
  if (degrees.cfg > 1 && own_mode && item.cfg_mode == CfgMode::batched)
    throw InputError(Setting::of("cfg_mode", "batched"),
                     "is for one process; the branches are divided among {}, as in sequential",
                     degrees.cfg);
}

int as_one_of(Ranks& ranks, const std::function<int()>& work) {
  try {
    return ranks.finish(work());
  } catch (const OtherRankFailed&) {
    throw;
  } catch (...) {
    if (const auto code = ranks.failed()) throw OtherRankFailed{*code};
    const Failure failure = describe_failure(std::current_exception());
    if (failure.code == kRunFailed) {  // perhaps only because another rank has gone
      if (const auto code = ranks.failed_elsewhere()) throw OtherRankFailed{*code};
    }
    if (!ranks.fail(failure.code)) throw OtherRankFailed{failure.code};
    if (ranks.rank() == 0 || failure.text.empty()) throw;
    throw RankFailed{failure.code, fmt::format("rank {}: {}", ranks.rank(), failure.text)};
  }
}

}  // namespace diptych

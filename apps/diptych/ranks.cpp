#include "apps/diptych/ranks.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "apps/diptych/failure.h"
#include "apps/diptych/request_flags.h"
#include "lib/base/error.h"
#include "lib/base/stdin.h"
#include "lib/batch/shards.h"
#include "lib/config/words.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

constexpr std::uint16_t kPort = 29500;  // torchrun's

// Where rank 0 is to be met: by torchrun's variables, or on this host.
Launch launch_of(const Shard& process) {
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
  return launch;
}

// What was asked for; else two ranks for the branches of guided requests, all others for the rows.
ParallelDegrees degrees_of(const RunConfig& run, std::size_t ranks) {
  const bool divides_rows = run.family->uses("ulysses_degree");
  const auto asked = [](const std::optional<std::int64_t>& degree) {
    return static_cast<std::size_t>(degree.value_or(0));
  };
  ParallelDegrees degrees;
  const std::size_t ulysses = asked(run.parallel.ulysses);
  degrees.cfg = asked(run.parallel.cfg);
  if (degrees.cfg == 0) {
    const std::size_t left = ranks / std::max<std::size_t>(ulysses, 1);
    const bool guided = run.sampling.cfg_text_scale != 1 && run.family->uses("cfg_parallel_size");
    degrees.cfg = guided && left % 2 == 0 ? 2 : 1;
  }
  degrees.ulysses = ulysses > 0 ? ulysses : divides_rows ? ranks / degrees.cfg : 1;
  return degrees;
}

void check_degrees(const RunConfig& run, const ParallelDegrees& degrees, const Shard& process) {
  const std::size_t shared = degrees.ranks_per_request();
  if (shared != process.count) {
    throw InputError(
        Setting::of("cfg_parallel_size"),
        "{} processes share one request ({}), but {} parts of its branches and {} of its rows are "
        "the work of {}",
        process.count, process.origin, degrees.cfg, degrees.ulysses, shared);
  }
  if (degrees.cfg > 1 && run.cache_mode != StepCacheMode::none)
    throw InputError(Setting::of("cache_mode"), "is for one process, which has all branches");
  if (degrees.ulysses > 1 && !run.trace.empty())
    throw InputError(
        Setting::of("trace"),
        "needs all rows in one process; expected a single one, or --cfg-parallel-size {}",
        process.count);
  for (const InputItem& item : run.inputs) {
    if (item.text == kStdin || item.file() == kStdin) {
      throw InputError("-: stdin has no meaning for {} processes ({}); expected a file",
                       process.count, process.origin);
    }
  }
}

// Whatever a process draws or chooses by itself.
void agree(RunConfig& run, Ranks& ranks) {
  SamplingConfig& sampling = run.sampling;
  if (!sampling.seed_drawn) return;
  const std::string seed = ranks.common_text("seed", [&] { return std::to_string(sampling.seed); });
  sampling.seed = std::stoull(seed);
}

// `why`: with a place for the number of processes.
void require_undivided(const RunConfig& run, fmt::format_string<std::int64_t&> why) {
  for (const auto& [degree, field] : {std::pair{run.parallel.cfg, "cfg_parallel_size"},
                                      std::pair{run.parallel.ulysses, "ulysses_degree"}}) {
    std::int64_t processes = degree.value_or(1);
    if (processes > 1) throw InputError(Setting::of(field), "{}", fmt::format(why, processes));
  }
}

}  // namespace

bool writes_results(const RunConfig& run) {
  return run.ranks == nullptr || run.ranks->leads();
}

void require_undivided(const RunConfig& run) {
  require_undivided(run, "{} processes for one request are for generate and bench; expected 1");
}

std::shared_ptr<Ranks> meet_ranks(Resolved& resolved, Log& log) {
  RunConfig& run = resolved.options.run;
  const auto process = process_of_environment(environment);
  if (!process) {
    require_undivided(run,
                      "{} processes are expected, and this one is alone; start them with "
                      "torchrun, mpirun or srun");
    return nullptr;
  }
  const ParallelDegrees degrees = degrees_of(run, process->count);
  check_degrees(run, degrees, *process);
  if (const auto device = device_of_rank(run.device, list_gpus().size(), environment))
    run.device = *device;
  const at::Device device = resolve_device(run.device, log);
  if (process->index > 0) log.set_level(LogLevel::quiet);
  run.ranks = Ranks::meet(launch_of(*process), degrees, device);
  agree(run, *run.ranks);
  if (degrees.cfg > 1) run.cfg_mode = CfgMode::sequential;
  log.info("{} processes share this request: {} for the guidance branches x {} for the rows",
           process->count, degrees.cfg, degrees.ulysses);
  return run.ranks;
}

int as_rank(const std::shared_ptr<Ranks>& ranks, const std::function<int()>& work) {
  if (ranks == nullptr) return work();
  try {
    const int code = work();
    ranks->finish();
    return code;
  } catch (const OtherRankFailed&) {
    throw;
  } catch (...) {
    const Failure failure = describe_failure(std::current_exception());
    if (failure.code == kRunFailed) {  // perhaps only because another rank has gone
      if (const auto code = ranks->failed_elsewhere()) throw OtherRankFailed{*code};
    }
    if (!ranks->fail(failure.code)) throw OtherRankFailed{failure.code};
    if (ranks->rank() == 0 || failure.text.empty()) throw;
    throw RankFailed{failure.code, fmt::format("rank {}: {}", ranks->rank(), failure.text)};
  }
}

}  // namespace diptych

#include "lib/batch/shards.h"

#include <array>
#include <charconv>
#include <vector>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/batch/manifest.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

constexpr std::size_t kMostShards = 1'000'000;

std::optional<std::size_t> parse_number(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value > kMostShards)
    return std::nullopt;
  return value;
}

std::optional<std::size_t> read_number(const Environment& environment, const std::string& name) {
  const auto text = environment(name);
  if (!text || text->empty()) return std::nullopt;
  if (const auto value = parse_number(*text)) return value;
  throw InputError("{}: {} is no number from 0 to {}; --shard I/N overrules it", name,
                   in_quotes(*text), kMostShards);
}

// Both variables of a pair, or nothing.
std::optional<Shard> read_pair(const Environment& environment, const char* index_name,
                               const char* count_name) {
  if (!environment(index_name) || !environment(count_name)) return std::nullopt;
  const auto index = read_number(environment, index_name);
  const auto count = read_number(environment, count_name);
  if (!index || !count) return std::nullopt;
  if (*index >= *count) {
    throw InputError("{}: {} of {} {}; expected less; --shard I/N overrules it", index_name, *index,
                     count_name, *count);
  }
  return Shard{*index, *count, fmt::format("{} and {}", index_name, count_name)};
}

// Half a launcher would make a process alone that others count on. An empty variable is not given.
void require_pair(const Environment& environment, const char* given, const char* other) {
  if (environment(given).value_or("").empty() || !environment(other).value_or("").empty()) return;
  throw InputError("{}: given without {}; expected both, as of a launcher, or neither", given,
                   other);
}

std::optional<Shard> slurm_array(const Environment& environment) {
  const auto id = read_number(environment, "SLURM_ARRAY_TASK_ID");
  const auto count = read_number(environment, "SLURM_ARRAY_TASK_COUNT");
  if (!id || !count) return std::nullopt;
  const std::size_t least = read_number(environment, "SLURM_ARRAY_TASK_MIN").value_or(0);
  const std::size_t step = read_number(environment, "SLURM_ARRAY_TASK_STEP").value_or(1);
  const auto most = read_number(environment, "SLURM_ARRAY_TASK_MAX");
  const bool even = step > 0 && *id >= least && (*id - least) % step == 0 &&
                    (*id - least) / step < *count &&
                    (!most || (*most >= least && (*most - least) / step + 1 == *count));
  if (!even) {
    throw InputError(
        "SLURM_ARRAY_TASK_ID: {} of an array of {} tasks with gaps; give --shard I/N, or an array "
        "such as 0-{}",
        *id, *count, *count > 0 ? *count - 1 : 0);
  }
  return Shard{(*id - least) / step, *count, "SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT"};
}

// The place among the groups of processes that share a request: their data group.
std::optional<Shard> data_group(const std::optional<Shard>& rank, std::size_t ranks_per_request) {
  if (ranks_per_request == 1) return rank;
  const std::size_t world = rank ? rank->count : 1;
  if (ranks_per_request == 0 || world % ranks_per_request != 0) {
    throw InputError("{}: found {} process(es), expected a multiple of {}, which share one request",
                     rank ? rank->origin : "no launcher", world, ranks_per_request);
  }
  return Shard{rank->index / ranks_per_request, world / ranks_per_request, rank->origin};
}

}  // namespace

std::string Shard::text() const {
  return fmt::format("{}/{}", index, count);
}

std::string Shard::manifest_name() const {
  return count == 1 ? kManifestName : fmt::format("manifest-{}-of-{}.jsonl", index, count);
}

Shard parse_shard(std::string_view text, const Setting& setting) {
  const std::size_t slash = text.find('/');
  const auto index = parse_number(text.substr(0, slash));
  const auto count =
      slash == std::string_view::npos ? std::nullopt : parse_number(text.substr(slash + 1));
  if (!index || !count || *index >= *count) {
    throw InputError(setting, "{} is no shard; expected I/N with I from 0 to N - 1, such as 0/4",
                     in_quotes(text));
  }
  return {*index, *count, setting.label};
}

std::optional<Shard> process_of_environment(const Environment& environment) {
  std::vector<Shard> found;
  const auto look = [&](const char* index_name, const char* count_name) {
    const auto rank = read_pair(environment, index_name, count_name);
    if (rank && rank->count > 1) found.push_back(*rank);
  };
  require_pair(environment, "RANK", "WORLD_SIZE");
  require_pair(environment, "WORLD_SIZE", "RANK");
  look("RANK", "WORLD_SIZE");
  look("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  look("PMI_RANK", "PMI_SIZE");
  // A launcher within a Slurm task or a job script leaves Slurm's variables in place. They then
  // count something larger.
  if (found.empty() && !is_slurm_job_script(environment)) look("SLURM_PROCID", "SLURM_NTASKS");
  for (const Shard& other : found) {
    const Shard& first = found.front();
    if (other.index == first.index && other.count == first.count) continue;
    throw InputError("{} say {}, but {} say {}; give --shard I/N", first.origin, first.text(),
                     other.origin, other.text());
  }
  return found.empty() ? std::nullopt : std::optional(found.front());
}

ListPart part_of_environment(const Environment& environment, std::size_t ranks_per_request) {
  return {slurm_array(environment).value_or(Shard{}),
          data_group(process_of_environment(environment), ranks_per_request).value_or(Shard{})};
}

bool is_slurm_job_script(const Environment& environment) {
  return environment("SLURM_PROCID") && environment("SLURM_NTASKS") &&
         !environment("SLURM_STEP_ID");
}

std::optional<DeviceChoice> device_of_rank(const DeviceChoice& device, std::size_t gpus,
                                           const Environment& environment) {
  using Kind = DeviceChoice::Kind;
  if (gpus < 2 || device.kind == Kind::cpu || device.kind == Kind::numbered) return std::nullopt;
  for (const char* name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const auto rank = read_number(environment, name))
      return DeviceChoice{Kind::numbered, static_cast<int>(*rank % gpus)};
  }
  return std::nullopt;
}

}  // namespace diptych

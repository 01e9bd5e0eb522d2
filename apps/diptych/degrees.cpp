#include "apps/diptych/degrees.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "lib/base/atomic_file.h"
#include "lib/base/environment.h"
#include "lib/base/json_file.h"
#include "lib/base/user_cache.h"
#include "lib/config/family_fields.h"
#include "lib/runtime/ranks.h"
#include "lib/runtime/runtime.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Repeated measurements differ by about so much.
constexpr double kFaster = 0.97;

std::size_t asked(const std::optional<std::int64_t>& degree) {
  return static_cast<std::size_t>(degree.value_or(0));
}

// A step cache has all branches in one process.
bool may_divide_branches(const Resolved& resolved) {
  const RunConfig& run = resolved.options.run;
  return run.family->uses("cfg_parallel_size") && !why_one_branch(run) &&
         run.cache_mode == StepCacheMode::none && !asks_for_one_forward(resolved);
}

bool may_divide_rows(const RunConfig& run, std::string_view field) {
  return run.family->uses(field) && !why_whole_rows(run);
}

// What may be one degree: what was asked for, or every number up to `most`.
std::vector<std::size_t> choices(const std::optional<std::int64_t>& degree, bool may_divide,
                                 std::size_t most) {
  if (degree) return {asked(degree)};
  std::vector<std::size_t> all = {1};
  for (std::size_t i = 2; may_divide && i <= most; ++i) all.push_back(i);
  return all;
}

// The degrees that were timed, in a file of the user's cache folder.
class KeptDegrees {
 public:
  KeptDegrees(const Resolved& resolved, const std::vector<ParallelDegrees>& ways)
      : of_(describe_request(resolved, ways)) {
    if (const auto folder = user_cache_folder()) file_ = *folder / "degrees.json";
  }

  // Nothing where these were not timed, or the file cannot be read: then it is made again.
  std::optional<ParallelDegrees> find() const {
    try {
      for (const Json& entry : entries()) {
        if (entry.at("of") != of_) continue;
        const Json& degrees = entry.at("degrees");
        return ParallelDegrees{degrees.at("cfg").get<std::size_t>(),
                               degrees.at("ulysses").get<std::size_t>(),
                               degrees.at("ring").get<std::size_t>()};
      }
    } catch (const std::exception&) {
    }
    return std::nullopt;
  }

  // Says where, or why not.
  std::string add(const ParallelDegrees& degrees, double seconds) const {
    if (file_.empty()) return "not kept, as neither XDG_CACHE_HOME nor HOME names a folder";
    Json kept = Json::array();
    try {
      for (const Json& entry : entries()) {
        if (entry.at("of") != of_) kept.push_back(entry);
      }
    } catch (const std::exception&) {
      kept = Json::array();
    }
    kept.push_back(
        {{"of", of_},
         {"degrees", {{"cfg", degrees.cfg}, {"ulysses", degrees.ulysses}, {"ring", degrees.ring}}},
         {"seconds", seconds}});
    try {
      fs::create_directories(file_.parent_path());
      AtomicFile out(file_);
      out.write(Json{{"schema", kSchema}, {"entries", kept}}.dump(1) + "\n");
      out.commit();
    } catch (const std::exception& error) {
      return fmt::format("not kept: {}", error.what());
    }
    return "kept in " + file_.string();
  }

 private:
  static constexpr const char* kSchema = "diptych.degrees.1";

  // What the time of a step depends on.
  static Json describe_request(const Resolved& resolved, const std::vector<ParallelDegrees>& ways) {
    const RunConfig& run = resolved.options.run;
    std::error_code error;
    const fs::path model = fs::weakly_canonical(run.model, error);
    const auto mode = run.parallel.whole_cfg_mode;
    const SamplingConfig& sampling = run.sampling;
    Json of = {{"version", DIPTYCH_VERSION},
               {"device", device_description(run.ranks->device(RankAxis::request))},
               {"ways", describe(ways)},
               {"processes_of_a_host", process_environment()("LOCAL_WORLD_SIZE").value_or("")},
               {"pipeline", run.family->name},
               {"model", (error ? run.model : model).string()},
               {"load_format", std::string(name_of(run.load_format))},
               {"task", run.task},
               {"inputs", run.inputs.size()},
               {"size", {sampling.width, sampling.height, sampling.frames}},
               {"guidance",
                {sampling.cfg_text_scale > 1, sampling.cfg_img_scale > 1, sampling.cfg_interval_low,
                 sampling.cfg_interval_high}},
               {"cfg_mode", mode ? std::string(name_of(*mode)) : "auto"},
               {"dtype", std::string(name_of(run.dtype))},
               {"quantization", std::string(name_of(run.quantization))},
               {"kernels", std::string(name_of(run.kernels))},
               {"attention", {run.paint_attention.default_backend, run.paint_attention.self}},
               {"eager", run.enforce_eager}};
    const auto fields = fields_of(resolved.options);
    for (std::size_t i = all_fields().size(); i < fields.size(); ++i)  // the family's own
      of["own"][std::string(fields[i].name)] = value_text(fields[i], resolved.options);
    return of;
  }

  // Throws where the file holds something else.
  Json entries() const {
    std::error_code error;
    if (file_.empty() || !fs::exists(file_, error)) return Json::array();
    const Json all = read_json_object(file_);
    return all.at("schema") == kSchema ? all.at("entries") : Json::array();
  }

  Json of_;
  fs::path file_;
};

std::optional<CfgMode> mode_with(const RunConfig& run, const ParallelDegrees& degrees) {
  return degrees.cfg > 1 ? std::optional(CfgMode::sequential) : run.parallel.whole_cfg_mode;
}

// Seconds of all steps with each of `ways`.
std::vector<double> time_ways(Session& session, Resolved& resolved,
                              const std::vector<ParallelDegrees>& ways, Progress& progress) {
  const std::vector<RunConfig> requests = timed_requests(resolved, ways);
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<JobGroup> groups;
  for (const RunConfig& request : requests) {
    jobs.push_back(session.make_job(request));
    groups.push_back({jobs.back().get()});
  }
  session.load(groups, progress);  // so that each of them fits
  std::vector<double> seconds;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    use_degrees(resolved.options.run, ways[i]);
    seconds.push_back(session.capabilities().timer->time_steps(*jobs[i], progress));
  }
  return seconds;
}

std::size_t fastest(const std::vector<double>& seconds) {
  const auto least = std::ranges::min_element(seconds);
  return *least < kFaster * seconds.front() ? static_cast<std::size_t>(least - seconds.begin()) : 0;
}

// What one rank has found, for all: the index of one of the ways, or "".
std::string index_text(std::optional<ParallelDegrees> degrees,
                       const std::vector<ParallelDegrees>& ways) {
  const auto way = degrees ? std::ranges::find(ways, *degrees) : ways.end();
  return way == ways.end() ? "" : std::to_string(way - ways.begin());
}

std::string times_text(const std::vector<ParallelDegrees>& ways,
                       const std::vector<double>& seconds) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < ways.size(); ++i)
    texts.push_back(fmt::format("{} {:.2f}", describe(ways[i]), seconds[i]));
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Times all ways, and says and keeps which one is the fastest.
std::size_t time_and_keep(Session& session, Resolved& resolved, const KeptDegrees& kept,
                          const std::vector<ParallelDegrees>& ways, const std::string& name,
                          Progress& progress, Log& log) {
  log.info("{} ways to divide this request are timed once", ways.size());
  const std::vector<double> seconds = time_ways(session, resolved, ways, progress);
  const std::string found = resolved.options.run.ranks->common_text("timed " + name, [&] {
    const std::size_t way = fastest(seconds);
    log.info("seconds of all steps: {}; {}", times_text(ways, seconds),
             kept.add(ways[way], seconds[way]));
    return std::to_string(way);
  });
  return std::stoul(found);
}

}  // namespace

std::optional<SettingText> why_one_branch(const RunConfig& run) {
  if (run.answers())
    return SettingText{Setting::of("task", run.task), " writes a text, which is the work of one"};
  if (run.sampling.cfg_text_scale <= 1)
    return SettingText{"guidance is off, and there is one branch (",
                       Setting::of("cfg_text_scale").called("--cfg-scale"), " above 1 has two)"};
  return std::nullopt;
}

std::optional<SettingText> why_whole_rows(const RunConfig& run) {
  if (run.answers())
    return SettingText{Setting::of("task", run.task), " writes a text, which is the work of one"};
  return std::nullopt;
}

bool asks_for_one_forward(const Resolved& resolved) {
  return resolved.options.run.parallel.whole_cfg_mode.value_or(CfgMode::sequential) ==
             CfgMode::batched &&
         resolved.origins[field_index("cfg_mode")].starts_with("--");
}

ParallelDegrees asked_degrees(const RunConfig& run, std::size_t stages) {
  ParallelDegrees degrees;
  degrees.cfg = std::max<std::size_t>(asked(run.parallel.cfg), 1);
  degrees.ulysses = std::max<std::size_t>(asked(run.parallel.ulysses), 1);
  degrees.ring = std::max<std::size_t>(asked(run.parallel.ring), 1);
  degrees.stages = stages;
  return degrees;
}

// BAGEL and Lance, which capture their steps (the field enforce_eager): two ranks divide the
// branches, more of them the rows, as a ring. Diffusion transformers: half of the ranks take each
// branch; within a branch, or without guidance, up to four form a ring and more use Ulysses, which
// then moves less.
ParallelDegrees usual_degrees(const Resolved& resolved, std::size_t ranks, std::size_t stages) {
  constexpr std::size_t kMostOfRing = 4;
  const RunConfig& run = resolved.options.run;
  ParallelDegrees degrees = asked_degrees(run, stages);
  if (stages > 1) return degrees;
  const auto left = [&] { return std::max<std::size_t>(ranks / degrees.ranks_per_request(), 1); };
  const bool mixture = run.family->uses("enforce_eager");
  const bool by_ring = !run.parallel.ring && may_divide_rows(run, "ring_degree");
  const bool rows_alone = by_ring && mixture && left() > 2;
  if (!run.parallel.cfg && may_divide_branches(resolved) && left() % 2 == 0 && !rows_alone)
    degrees.cfg = 2;
  const bool by_ulysses = !mixture && !run.parallel.ulysses &&
                          may_divide_rows(run, "ulysses_degree") &&
                          !(by_ring && left() <= kMostOfRing);
  if (by_ulysses) degrees.ulysses = left();
  if (by_ring) degrees.ring = left();
  return degrees;
}

std::vector<ParallelDegrees> possible_degrees(const Resolved& resolved, std::size_t ranks) {
  constexpr std::size_t kBranches = 2;
  const RunConfig& run = resolved.options.run;
  const bool branches = may_divide_branches(resolved);
  const bool rows = run.trace.empty();
  std::vector<ParallelDegrees> ways;
  for (const std::size_t cfg : choices(run.parallel.cfg, branches, kBranches)) {
    for (const std::size_t ulysses :
         choices(run.parallel.ulysses, rows && may_divide_rows(run, "ulysses_degree"), ranks)) {
      for (const std::size_t ring :
           choices(run.parallel.ring, rows && may_divide_rows(run, "ring_degree"), ranks)) {
        if (cfg * ulysses * ring == ranks) ways.push_back({cfg, ulysses, ring});
      }
    }
  }
  return ways;
}

std::vector<ParallelDegrees> degrees_to_time(const Resolved& resolved) {
  const RunConfig& run = resolved.options.run;
  if (run.ranks == nullptr || !run.ranks->device(RankAxis::request).is_cuda()) return {};
  const bool limits_memory = run.max_vram > 0 || (run.offload != OffloadWish::automatic &&
                                                  run.offload != OffloadWish::none);
  if (limits_memory || run.sampling.size_of_input || run.sampling.frames_of_input) return {};
  const std::size_t ranks = run.ranks->comm().request.size;
  std::vector<ParallelDegrees> ways = possible_degrees(resolved, ranks);
  if (ways.size() < 2) return {};
  const ParallelDegrees usual = usual_degrees(resolved, ranks, 1);
  std::ranges::stable_partition(ways, [&](const ParallelDegrees& way) { return way == usual; });
  return ways;
}

std::string describe(const ParallelDegrees& degrees) {
  std::vector<std::string> parts;
  if (degrees.cfg > 1) parts.push_back(fmt::format("{} branches", degrees.cfg));
  if (degrees.ulysses > 1) parts.push_back(fmt::format("Ulysses {}", degrees.ulysses));
  if (degrees.ring > 1) parts.push_back(fmt::format("ring {}", degrees.ring));
  return parts.empty() ? "one process" : fmt::format("{}", fmt::join(parts, " x "));
}

std::string describe(const std::vector<ParallelDegrees>& ways) {
  std::vector<std::string> texts;
  for (const ParallelDegrees& way : ways) texts.push_back(describe(way));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void use_degrees(RunConfig& run, const ParallelDegrees& degrees) {
  run.ranks->regroup(degrees);
  run.cfg_mode = mode_with(run, degrees);
}

std::vector<RunConfig> timed_requests(const Resolved& resolved,
                                      const std::vector<ParallelDegrees>& ways) {
  std::vector<RunConfig> requests;
  for (const ParallelDegrees& way : ways) {
    RunConfig& run = requests.emplace_back(resolved.options.run);
    run.cfg_mode = mode_with(run, way);
    run.think = false;
    run.trace.clear();
    run.cache_mode = StepCacheMode::none;
    run.cache_report = false;
    run.sampling.batch_count = 1;
  }
  return requests;
}

void choose_degrees(Session& session, Resolved& resolved, const std::vector<ParallelDegrees>& ways,
                    const std::string& name, Progress& progress, Log& log) {
  if (ways.empty() || session.capabilities().timer == nullptr) return;
  RunConfig& run = resolved.options.run;
  const KeptDegrees kept(resolved, ways);
  const std::string known =
      run.ranks->common_text("kept " + name, [&] { return index_text(kept.find(), ways); });
  const std::size_t way = known.empty()
                              ? time_and_keep(session, resolved, kept, ways, name, progress, log)
                              : std::stoul(known);
  use_degrees(run, ways.at(way));
  log.info("divided by {}{}", describe(ways.at(way)),
           known.empty() ? "" : ", as an earlier run has timed");
}

}  // namespace diptych

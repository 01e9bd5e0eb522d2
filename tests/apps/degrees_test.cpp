#include "apps/diptych/degrees.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "apps/diptych/request_sources.h"
#include "lib/pipelines/registry.h"
#include "lib/runtime/ranks.h"
#include "tests/support/folder.h"

namespace diptych {
namespace {

// Of the stage config of that pipeline, with these fields as flags.
Resolved request_of(const std::string& pipeline,
                    const std::map<std::string, std::string>& values = {}) {
  static const std::map<std::string, std::string> kConfigs = {{"wan", "wan2.1_t2v_14b"},
                                                              {"cosmos", "cosmos_predict2_t2i"}};
  const auto config = kConfigs.find(pipeline);
  Sources sources;
  sources.inputs = {{MediaKind::text, "a red fox"}};
  sources.families = all_family_configs();
  sources.flags["-c,--config"] = {
      fmt::format("{}/stage_configs/{}.yaml", DIPTYCH_SOURCE_DIR,
                  config == kConfigs.end() ? pipeline : config->second)};
  for (const auto& [name, value] : values)
    sources.flags[std::string(all_fields()[field_index(name)].flags)] = {value};
  Resolved resolved = resolve(sources);
  RunConfig& run = resolved.options.run;
  run.parallel.whole_cfg_mode = run.cfg_mode;
  return resolved;
}

std::vector<std::string> ways(const Resolved& resolved, std::size_t ranks) {
  std::vector<std::string> texts;
  for (const ParallelDegrees& way : possible_degrees(resolved, ranks))
    texts.push_back(describe(way));
  return texts;
}

// Ranks of one process: all that is said is its own.
class LoneRanks final : public Ranks {
 public:
  explicit LoneRanks(const ParallelDegrees& degrees)
      : Ranks(0, Comm::of_rank(0, degrees.ranks_per_request(), degrees)) {}
  void regroup(const ParallelDegrees& degrees) override {
    set_comm(Comm::of_rank(0, comm().request.size, degrees));
  }
  Tensor all_gather(RankAxis, const Tensor&) override { return none(); }
  Tensor all_to_all(RankAxis, const Tensor&) override { return none(); }
  Tensor exchange(RankAxis, const Tensor&) override { return none(); }
  at::Device device(RankAxis) const override { return at::kCPU; }
  void send(RankAxis, const Tensor&) override { none(); }
  void receive(RankAxis, const Tensor&) override { none(); }
  void tell(RankAxis, const std::string&, const std::string&) override { none(); }
  std::string hear(RankAxis, const std::string&) override { return {}; }
  std::string common_text(const std::string&, const std::function<std::string()>& make) override {
    return make();
  }
  std::string group_text(const std::string&, const std::function<std::string()>& make) override {
    return make();
  }
  bool fail(int) noexcept override { return true; }
  std::optional<int> failed_elsewhere() noexcept override { return std::nullopt; }
  std::optional<int> failed() const noexcept override { return std::nullopt; }
  int finish(int code) override { return code; }

 private:
  static Tensor none() { throw std::logic_error("nothing is exchanged here"); }
};

class NoJob final : public Job {
 public:
  explicit NoJob(const RunConfig& config) : Job(config) {}
  void decode_inputs() override {}
};

// Takes as long as it is told for each division.
class TimedSession final : public Session, StepTimer {
 public:
  TimedSession(const RunConfig& run, std::map<std::string, double> seconds)
      : ranks_(*run.ranks), seconds_(std::move(seconds)) {}
  std::unique_ptr<Job> make_job(const RunConfig& request) override {
    modes.push_back(request.cfg_mode);
    return std::make_unique<NoJob>(request);
  }
  void load(std::span<const JobGroup>, Progress&) override {}
  std::string weights_hash() override { return {}; }
  bool may_share(const RunConfig&, const RunConfig&) const override { return false; }
  void run(const JobGroup&, Progress&, const Results&) override {}
  Report report() const override { return {}; }
  Capabilities capabilities() override { return {.timer = this}; }
  double time_steps(Job&, Progress&) override {
    return seconds_.at(describe(degrees_of(ranks_.comm())));
  }

  std::vector<std::optional<CfgMode>> modes;  // of the jobs

 private:
  Ranks& ranks_;
  std::map<std::string, double> seconds_;
};

// What is chosen among four ranks of Wan, which takes 2 branches x ring 2 as a rule.
struct Chosen {
  std::string degrees;
  std::optional<CfgMode> mode;
  std::size_t timed;  // ways
};
Chosen choose(const std::map<std::string, double>& seconds, const std::string& size = "512x512") {
  Resolved resolved = request_of("wan");
  assign_size(resolved.options, size);
  RunConfig& run = resolved.options.run;
  run.ranks = std::make_shared<LoneRanks>(usual_degrees(resolved, 4, 1));
  run.cfg_mode = CfgMode::sequential;
  TimedSession session(run, seconds);
  Log log(LogLevel::quiet);
  Progress progress(log, ProgressStyle::none);
  std::vector<ParallelDegrees> ways = possible_degrees(resolved, 4);
  const ParallelDegrees usual = usual_degrees(resolved, 4, 1);
  std::ranges::stable_partition(ways, [&](const ParallelDegrees& way) { return way == usual; });
  choose_degrees(session, resolved, ways, "request", progress, log);
  return {describe(degrees_of(run.ranks->comm())), run.cfg_mode, session.modes.size()};
}

}  // namespace

TEST_CASE("every division that goes with what was asked for is possible") {
  CHECK(ways(request_of("wan"), 2) ==
        std::vector<std::string>{"ring 2", "Ulysses 2", "2 branches"});
  CHECK(ways(request_of("wan"), 4) == std::vector<std::string>{"ring 4", "Ulysses 2 x ring 2",
                                                               "Ulysses 4", "2 branches x ring 2",
                                                               "2 branches x Ulysses 2"});
  CHECK(ways(request_of("bagel"), 3) == std::vector<std::string>{"ring 3", "Ulysses 3"});
  CHECK(ways(request_of("wan", {{"cfg_parallel_size", "1"}, {"ring_degree", "1"}}), 4) ==
        std::vector<std::string>{"Ulysses 4"});
  CHECK(ways(request_of("wan", {{"ring_degree", "2"}}), 4) ==
        std::vector<std::string>{"Ulysses 2 x ring 2", "2 branches x ring 2"});
  CHECK(ways(request_of("wan", {{"ring_degree", "3"}}), 4).empty());
  // One forward of both branches, no guidance, and steps that are not all computed.
  for (const auto& [field, value] :
       {std::pair{"cfg_mode", "batched"}, {"cfg_text_scale", "1"}, {"cache_mode", "taylorseer"}}) {
    CHECK(ways(request_of("wan", {{field, value}}), 2) ==
          std::vector<std::string>{"ring 2", "Ulysses 2"});
  }
  CHECK(ways(request_of("wan", {{"trace", "t.safetensors"}}), 2) ==
        std::vector<std::string>{"2 branches"});
}

TEST_CASE("what is usual is possible") {
  for (const char* pipeline : {"bagel", "lance", "wan", "cosmos"}) {
    const Resolved resolved = request_of(pipeline);
    for (const std::size_t ranks : {2, 3, 4, 5, 6, 8}) {
      CAPTURE(pipeline);
      CAPTURE(ranks);
      const auto all = possible_degrees(resolved, ranks);
      CHECK(std::ranges::find(all, usual_degrees(resolved, ranks, 1)) != all.end());
    }
  }
  CHECK(describe(usual_degrees(request_of("wan"), 2, 1)) == "2 branches");
  CHECK(describe(usual_degrees(request_of("wan"), 4, 1)) == "2 branches x ring 2");
  CHECK(describe(usual_degrees(request_of("lance"), 4, 1)) == "ring 4");
  const Resolved unguided = request_of("wan", {{"cfg_text_scale", "1"}});
  CHECK(describe(usual_degrees(unguided, 4, 1)) == "ring 4");
  CHECK(describe(usual_degrees(unguided, 8, 1)) == "Ulysses 8");
  CHECK(describe(usual_degrees(request_of("wan"), 16, 1)) == "2 branches x Ulysses 8");
}

TEST_CASE("the fastest division is timed once, and kept") {
  const test::Folder folder;
  const char* earlier = std::getenv("XDG_CACHE_HOME");
  const std::string before = earlier == nullptr ? "" : earlier;
  ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);
  const std::map<std::string, double> seconds = {{"ring 4", 3.0},
                                                 {"Ulysses 2 x ring 2", 2.0},
                                                 {"Ulysses 4", 1.9},
                                                 {"2 branches x ring 2", 2.5},
                                                 {"2 branches x Ulysses 2", 2.1}};
  const Chosen first = choose(seconds);
  CHECK(first.degrees == "Ulysses 4");
  CHECK(first.mode == CfgMode::batched);
  CHECK(first.timed == 5);
  const Chosen again = choose({});  // would throw where it is timed
  CHECK(again.degrees == "Ulysses 4");
  CHECK(again.mode == CfgMode::batched);
  CHECK(again.timed == 0);
  // 2 % do not change what is usual, and another size is timed for itself.
  std::map<std::string, double> close = seconds;
  close["2 branches x ring 2"] = 1.93;
  const Chosen usual = choose(close, "768x512");
  CHECK(usual.degrees == "2 branches x ring 2");
  CHECK(usual.mode == CfgMode::sequential);
  CHECK(choose({}).degrees == "Ulysses 4");
  CHECK(choose({}, "768x512").degrees == "2 branches x ring 2");
  // A file that is broken, or holds something else, is made again.
  for (const char* broken : {"{\"schema\": 7", "{\"schema\": 7}",
                             "{\"schema\": \"diptych.degrees.1\", \"entries\": [3]}",
                             "{\"schema\": \"diptych.degrees.1\", \"entries\": 3}"}) {
    CAPTURE(broken);
    folder.write("diptych/degrees.json", broken);
    CHECK(choose(seconds).timed == 5);
    CHECK(choose({}).timed == 0);
  }
  if (before.empty()) {
    ::unsetenv("XDG_CACHE_HOME");
  } else {
    ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
  }
}

}  // namespace diptych

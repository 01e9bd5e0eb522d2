// What `diptych bench` measures: one case for each size, with the request and, where it is held
// against another setting, that one, too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/config/resolve.h"
#include "lib/runtime/metered_ranks.h"

namespace diptych {

struct BenchSetting {
  std::string label;  // "base", or "cfg_mode=sequential"
  Resolved request;
  const Options& options() const { return request.options; }
};

struct BenchCase {
  std::string name;                    // "512x512", "edit" of the input's size, "chat", "chat-x4"
  std::vector<BenchSetting> settings;  // the base, and what it is held against
  std::int64_t together = 1;           // requests that share forwards, each with the next seed
};

struct BenchPlan {
  std::vector<BenchCase> cases;
  std::int64_t repeats = 5, warmup = 1;
  std::int64_t warmup_steps = 0;   // 0: those of the request
  std::filesystem::path save_dir;  // "" = nothing is kept
  bool launches = false;           // are counted
  bool kernel_times = false;       // are told, with what they have to do
  bool floor = false;              // is measured behind each run
  // That of the requests, where they divide the steps: their exchanges are measured. Else null.
  std::shared_ptr<MeteredRanks> meter;
  std::vector<ParallelDegrees> ways;  // to divide each case, of which the fastest is chosen
};

// What a benchmark runs beside the request itself.
struct BenchVariants {
  std::optional<std::string> sizes;        // "256x256,512x512"; none: the request's own
  std::optional<std::string> batch_sizes;  // "1,4,16", of texts; none: one at a time
  std::vector<std::string> against;        // "cfg_mode=sequential", ...
  std::string sizes_origin = {};           // "--sizes", or its variable
};

// Throws InputError for sizes and values that do not go with the request, which is checked as
// `generate` checks its own.
std::vector<BenchCase> plan_bench(const Resolved& request, const BenchVariants& variants);

}  // namespace diptych

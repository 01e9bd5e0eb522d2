// What `diptych bench` measures: one case for each size, with the request and, where it is held
// against another setting, that one, too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lib/config/resolve.h"

namespace diptych {

struct BenchSetting {
  std::string label;  // "base", or "cfg_mode=sequential"
  Resolved request;
  const Options& options() const { return request.options; }
};

struct BenchCase {
  std::string name;                    // "512x512", "edit" of the input's size, "chat"
  std::vector<BenchSetting> settings;  // the base, and what it is held against
};

struct BenchPlan {
  std::vector<BenchCase> cases;
  std::int64_t repeats = 5, warmup = 1;
  std::int64_t warmup_steps = 0;   // 0: those of the request
  std::filesystem::path save_dir;  // "" = nothing is kept
  bool launches = false;           // are counted
  bool kernel_times = false;       // are told, with what they have to do
  bool floor = false;              // is measured behind each run
};

// `sizes`: "256x256,512x512", nothing = the request's own. `against`: "cfg_mode=sequential", ...
// Throws InputError for sizes and values that do not go with the request, which is checked as
// `generate` checks its own.
std::vector<BenchCase> plan_bench(const Resolved& request, const std::optional<std::string>& sizes,
                                  const std::vector<std::string>& against);

}  // namespace diptych

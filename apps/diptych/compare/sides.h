// Two settings of one list of prompts, run one behind the other in one process and compared.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "apps/diptych/compare/report.h"
#include "apps/diptych/request_flags.h"
#include "lib/base/log.h"

namespace diptych {

struct SideFlags : RequestFlags {   // those of a request are of both sides
  std::optional<std::string> a, b;  // their settings, as texts
  std::filesystem::path prompts;    // "" = none
  std::string warmup = "1";
  bool repeat_a = false, resume = false;
  bool any() const { return a || b || !prompts.empty(); }
};

// Runs both into `a` and `b` below options.output, compares their files and prints the report.
// Returns 0, 1 where a gate failed, or 4 where an item failed. Throws InputError for what is wrong
// with the command, and what ends a batch.
int compare_sides(const SideFlags& flags, const CompareOptions& options, Log& log);

}  // namespace diptych

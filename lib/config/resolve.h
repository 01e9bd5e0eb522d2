// What a run uses, from all sources: flag, environment, stage config, default, in that order. A
// `--set` edits the stage config, but counts as a flag.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/config/fields.h"

namespace diptych {

struct Sources {
  std::map<std::string, std::vector<std::string>> flags;  // by `flags` of the field or group
  std::vector<std::string> overrides;                     // --set
  std::function<std::optional<std::string>(const std::string&)> environment;
  std::optional<std::filesystem::path> demo;  // the stage config used without -c and -m
};

struct Resolved {
  Options options;
  std::vector<std::string>
      origins;  // per field: "--steps", "DIPTYCH_STEPS", "demo.yaml:9:5", "default"
  bool uses_demo = false;
  bool is_default(std::string_view field) const { return origins[field_index(field)] == "default"; }
};

// Throws InputError for the first bad value, also for one that a stronger source overrules.
Resolved resolve(const Sources& sources);

// One "name: value  # origin" line per field.
std::string config_table(const Resolved& resolved);

}  // namespace diptych

// Where a run's tuning comes from: a folder that was named, the tables in this binary, or nowhere.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lib/tuning/file.h"

namespace diptych {

struct BuiltInTuning {
  std::string_view name;  // "NVIDIA_H200.json"
  std::string_view text;
};
// lib/tuning/tables, as it was when this was built.
std::span<const BuiltInTuning> built_in_tunings();

struct Tuning {
  std::shared_ptr<const TuningFile> file;  // null: none was found, the code's defaults hold
  std::string origin;                      // the file, or "built in"; "" without
  const TuningTable* table() const { return file == nullptr ? nullptr : &file->table; }
  std::shared_ptr<const TuningTable> shared_table() const { return {file, table()}; }
  // What a run's record calls it: the table's hash, or "default".
  std::string name() const { return file == nullptr ? "default" : file->table.hash(); }
};

// The folder's file of the device's name, else the built-in one. `folder`: "" = none was named.
// Throws InputError for a folder that is not there and as parse_tuning().
Tuning find_tuning(const std::filesystem::path& folder, const TunedDevice& device);

}  // namespace diptych

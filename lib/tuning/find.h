// Where a run's tuning comes from: a folder that was named, the tables in this binary, or nowhere.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  std::string origin;                      // the file, or "built in NAME"; "" without
  const TuningTable* table() const { return file == nullptr ? nullptr : &file->table; }
  std::shared_ptr<const TuningTable> shared_table() const { return {file, table()}; }
  // What a run's record calls it: the table's hash, or "default".
  std::string name() const { return file == nullptr ? "default" : file->table.hash(); }
};

// The folder's file of the device's name, else the built-in one, else a built-in one of another GPU
// with the same compute capability (an H100 without a table takes the H200's). `folder`: "" = none
// was named; else it is there. Throws as parse_tuning(), and InputError for what has that name and
// is no file, cannot be read, or is larger than 4 MiB.
Tuning find_tuning(const std::filesystem::path& folder, const TunedDevice& device);

// What a run says of what it found, a line each: nothing where it is simply the tuning that was
// asked for. `torch`: the version of libtorch that runs.
std::vector<std::string> tuning_notes(const Tuning& tuning, const std::filesystem::path& folder,
                                      const TunedDevice& device, std::string_view torch);

}  // namespace diptych

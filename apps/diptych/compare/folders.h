// Two folders, held against each other file by file.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "apps/diptych/compare/report.h"

namespace diptych {

// What both folders should hold under one name.
struct FolderPair {
  std::array<bool, 2> there{};                     // in options.actual, options.expected
  std::array<std::optional<double>, 2> seconds{};  // that it took, where a manifest says so
  bool is_text = false;                            // an answer, by a manifest
  std::string failure;                             // why there is nothing to compare, "" = there is
};

struct FolderPairs {
  std::map<std::string, FolderPair> by_name;  // below both folders; of a failed item its id
  bool of_manifests = false;                  // both folders have one: what it lists must be there
};

// The pictures, clips and traces in both folders and, where each has the manifest of a batch, what
// these list, texts among it. Links that lead nowhere count by their names. Reads no picture.
// Throws InputError for a broken manifest.
FolderPairs pair_folders(const std::filesystem::path& actual,
                         const std::filesystem::path& expected);

// Compares every pair; what cannot be compared is counted in the report's `incomplete`. What one of
// them lacks fails every gate, and without one is `incomplete`, too. Writes each pair side by side
// below options.output, if there is one. Prints as it goes, unless options.json: lines of each pair
// or, where there are manifests, a table. Throws InputError where neither folder holds anything,
// and what ends the program: WriteError, Interrupted.
CompareReport compare_folders(const CompareOptions& options);

}  // namespace diptych

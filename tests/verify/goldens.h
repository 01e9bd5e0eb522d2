// Where the recorded cases are: a choice in the repository always, and the full set where
// $DIPTYCH_GOLDENS or ../shared/goldens is.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace diptych::test {

// Folders with the checkpoint and the cases of a family, "bagel" or "lance". A folder that is named
// must be there; the one beside the checkout may be.
inline std::vector<std::filesystem::path> goldens_of(const std::string& family) {
  const char* named = std::getenv("DIPTYCH_GOLDENS");
  const std::filesystem::path source = DIPTYCH_SOURCE_DIR;
  const auto full =
      named != nullptr ? std::filesystem::path(named) : source.parent_path() / "shared/goldens";
  std::vector<std::filesystem::path> folders = {source / "tests/goldens" / family};
  if (std::filesystem::is_directory(full / family / "cases")) {
    folders.push_back(full / family);
  } else if (named != nullptr) {
    throw std::runtime_error("DIPTYCH_GOLDENS: has no " + family + "/cases: " + full.string());
  }
  return folders;
}

inline std::vector<std::filesystem::path> bagel_goldens() {
  return goldens_of("bagel");
}

inline std::vector<std::filesystem::path> bagel_cases() {
  std::vector<std::filesystem::path> folders;
  for (const auto& goldens : bagel_goldens()) {
    for (const auto& entry : std::filesystem::directory_iterator(goldens / "cases")) {
      if (std::filesystem::exists(entry.path() / "case.json")) folders.push_back(entry.path());
    }
  }
  return folders;
}

inline nlohmann::json case_json(const std::filesystem::path& folder) {
  std::ifstream file(folder / "case.json");
  return nlohmann::json::parse(file);
}

inline nlohmann::json own_case(const char* name) {
  return case_json(std::filesystem::path(DIPTYCH_SOURCE_DIR) / "tests/goldens/bagel/cases" / name);
}

}  // namespace diptych::test

// Where the recorded cases are: the small ones in the repository, and all of them where present.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

namespace diptych::test {

inline std::vector<std::filesystem::path> bagel_cases() {
  const char* set = std::getenv("DIPTYCH_GOLDENS");
  const std::filesystem::path source = DIPTYCH_SOURCE_DIR;
  const auto full = set != nullptr ? std::filesystem::path(set) : source / "../shared/goldens";
  std::vector<std::filesystem::path> folders;
  for (const auto& cases : {source / "tests/goldens/bagel/cases", full / "bagel/cases"}) {
    if (!std::filesystem::exists(cases)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(cases)) {
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

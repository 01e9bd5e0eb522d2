// What a batch leaves in its folder.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/text_file.h"

namespace diptych::test {

// Every file below the folder by its name; a manifest without its seconds.
inline std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string text = read_text_file(entry.path());
    for (std::size_t at = 0; entry.path().extension() == ".jsonl" &&
                             (at = text.find("\"seconds\":", at)) != std::string::npos;)
      text.erase(at, text.find(',', at) + 1 - at);
    files[std::filesystem::relative(entry.path(), folder).string()] = std::move(text);
  }
  return files;
}

inline std::vector<nlohmann::json> manifest(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace diptych::test

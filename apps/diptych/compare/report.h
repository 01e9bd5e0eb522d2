// What `diptych compare` was asked, and what it found out about one pair of files.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lib/base/setting.h"
#include "lib/verify/clip_metrics.h"
#include "lib/verify/gates.h"

namespace diptych {

struct CompareOptions {
  std::filesystem::path actual, expected;  // A and B
  ImageGates gates;
  std::vector<std::string> tolerances;  // "T" or "GLOB=T"
  std::filesystem::path case_file;
  std::filesystem::path difference, output;  // that are written; of folders `output` is one
  std::array<std::string, 2> titles;         // of folders, "" = their names
  bool json = false;
  // The first that is given of those for pictures and clips alone, and of those for traces alone.
  std::optional<Setting> picture_gate() const;
  std::optional<Setting> trace_gate() const;
  bool any_gate() const { return gates.any() || trace_gate(); }
};

struct CompareReport {
  std::vector<std::string> lines;
  nlohmann::json json = nlohmann::json::object();
  bool pass = true;
  std::string incomplete;  // of folders: how many pairs could not be compared, or empty
  std::vector<std::string> failed_gates;  // these stand in `lines`, too
  // Of two pictures (one frame) or two clips that could be compared.
  std::optional<ClipExtremes> extremes;
  std::vector<std::string> tensors;  // that were expected
  // That were compared; clips count as pictures.
  std::size_t pictures = 0, traces = 0, texts = 0;
};

inline CompareReport problem(const std::string& text, bool pass) {
  CompareReport report;
  report.lines.push_back(text);
  report.json["problem"] = text;
  report.pass = pass;
  return report;
}

// That two pictures or clips differ in a way that leaves nothing to compare, and which files are
// therefore not written. `text`: without an end mark.
CompareReport incomparable(const std::string& text, const CompareOptions& options);

// Adds the gates that are set, which fail or pass it.
void add_gates(CompareReport& report, const std::vector<GateResult>& gates);

}  // namespace diptych

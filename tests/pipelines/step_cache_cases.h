// Step caches through a session, and what they must hold to on every device.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/pipelines/session_cases.h"

namespace diptych::test {

// Text guidance alone, 19 updates, 16 of them with guidance: 35 forwards without a cache.
RunConfig cached_request(const std::string& prompt);
RunConfig taylorseer(RunConfig config);

// Every picture of one request.
std::vector<Result> paint(SessionFixture& f, const RunConfig& config);

// What record_steps() gives for a prompt, fitted and written; removed at the end.
class CalibrationFile {
 public:
  explicit CalibrationFile(SessionFixture& f);
  ~CalibrationFile();
  CalibrationFile(const CalibrationFile&) = delete;
  CalibrationFile& operator=(const CalibrationFile&) = delete;
  RunConfig teacache(RunConfig config, double threshold) const;

 private:
  std::filesystem::path path_;
};

// Recorded, calibrated, painted with either cache, and reported.
void check_step_caches(SessionPlace place);

}  // namespace diptych::test

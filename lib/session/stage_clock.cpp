#include "lib/session/stage_clock.h"

#include <utility>

#include "lib/base/log.h"
#include "lib/runtime/runtime.h"

namespace diptych {

void StageClock::start() {
  last_ = steady_seconds();
}

double StageClock::lap(Report& report, const std::string& stage, c10::Device device) {
  synchronize(device);
  const double now = steady_seconds(), seconds = now - std::exchange(last_, now);
  add(report, stage, seconds);
  return seconds;
}

void StageClock::lap(Report& report, const std::string& stage, const std::string& later,
                     double later_seconds, c10::Device device) {
  lap(report, stage, device);
  add(report, stage, -later_seconds);
  add(report, later, later_seconds);
}

void StageClock::add(Report& report, const std::string& stage, double seconds) {
  for (auto& [name, sum] : report.seconds) {
    if (name == stage) {
      sum += seconds;
      return;
    }
  }
  report.seconds.emplace_back(stage, seconds);
}

}  // namespace diptych

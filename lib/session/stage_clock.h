// How long the stages of a run take.
#pragma once

#include <string>

#include <c10/core/Device.h>

#include "lib/session/result.h"

namespace diptych {

// Seconds per stage, in the order of their first lap.
class StageClock {
 public:
  void start();
  // Adds the time since start() or the last lap to `stage`, once the device is done, and returns
  // it.
  double lap(Report& report, const std::string& stage, c10::Device device);
  // The same, where the last `later_seconds` of it are of another stage.
  void lap(Report& report, const std::string& stage, const std::string& later, double later_seconds,
           c10::Device device);

 private:
  static void add(Report& report, const std::string& stage, double seconds);
  double last_ = 0;
};

}  // namespace diptych

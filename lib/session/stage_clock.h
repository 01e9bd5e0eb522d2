// How long the stages of a run take.
#pragma once

#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "lib/session/result.h"

namespace diptych {

// Adds to `seconds` what the receiver of the clip waits for its frames.
void count_decoding(Clip& clip, std::shared_ptr<double> seconds);

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
  // A clip is decoded while its receiver encodes it: what it waits for frames until the next
  // lap_encoding() counts as "vae" there.
  void watch_decoding(Result& result);
  void lap_encoding(Report& report, c10::Device device);  // "encode", for the rest

 private:
  static void add(Report& report, const std::string& stage, double seconds);
  double last_ = 0;
  std::shared_ptr<double> decoding_ = std::make_shared<double>(0);  // seconds, of watched clips
};

}  // namespace diptych

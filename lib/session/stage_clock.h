// What the session of any family needs beside its model: times, hashes, checks of results.
#pragma once

#include <functional>
#include <future>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "lib/session/session.h"

namespace diptych {

// Seconds per stage, in the order of their first lap.
class StageClock {
 public:
  void start();
  // Adds the time since start() or the last lap to `stage`, once the device is done, and returns
  // it.
  double lap(Report& report, const std::string& stage, at::Device device);
  // The same, where the last `later_seconds` of it are of another stage.
  void lap(Report& report, const std::string& stage, const std::string& later, double later_seconds,
           at::Device device);

 private:
  static void add(Report& report, const std::string& stage, double seconds);
  double last_ = 0;
};

// Names the weights beside the painting: it reads every byte of them. Stops when it goes.
class BackgroundHash {
 public:
  explicit BackgroundHash(std::function<std::string(const std::stop_token&)> hash);
  std::string get() { return future_.get(); }  // waits; throws what the function threw

 private:
  std::promise<std::string> promise_;
  std::shared_future<std::string> future_ = promise_.get_future().share();
  std::jthread thread_;  // last: it is joined before the promise goes
};

std::string tensor_hash(const Tensor& values);  // sha-256 of the bytes
std::string short_hash(const Tensor& values);   // 16 hex digits of that of the float32 values

// Throws RunError naming `what`: a picture of NaN would be black and look like a result. Waits for
// the device.
void require_finite(const Tensor& values, std::string_view what);

}  // namespace diptych

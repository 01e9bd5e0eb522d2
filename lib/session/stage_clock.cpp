#include "lib/session/stage_clock.h"

#include <utility>
#include <variant>

#include "lib/base/log.h"
#include "lib/runtime/runtime.h"

namespace diptych {

void count_decoding(Clip& clip, std::shared_ptr<double> seconds) {
  clip.decode = [decode = std::move(clip.decode),
                 seconds = std::move(seconds)](const std::function<void(const Tensor&)>& take) {
    double since = steady_seconds();
    decode([&](const Tensor& frames) {
      *seconds += steady_seconds() - since;
      take(frames);
      since = steady_seconds();
    });
    *seconds += steady_seconds() - since;
  };
}

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

void StageClock::watch_decoding(Result& result) {
  if (auto* const clip = std::get_if<Clip>(&result.media)) count_decoding(*clip, decoding_);
}

void StageClock::lap_encoding(Report& report, c10::Device device) {
  lap(report, "encode", "vae", *decoding_, device);
  decoding_ = std::make_shared<double>(0);  // what is decoded later is in nobody's lap
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

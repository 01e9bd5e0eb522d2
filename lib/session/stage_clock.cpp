#include "lib/session/stage_clock.h"

#include <utility>
#include <variant>

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

void StageClock::watch_decoding(Result& result) {
  auto* const clip = std::get_if<Clip>(&result.media);
  if (clip == nullptr) return;
  clip->decode = [decode = std::move(clip->decode),
                  seconds = decoding_](const std::function<void(const Tensor&)>& take) {
    double since = steady_seconds();
    const auto waited = [&] {
      const double now = steady_seconds();
      *seconds += now - std::exchange(since, now);
    };
    decode([&](const Tensor& frames) {
      waited();
      take(frames);
      since = steady_seconds();
    });
    waited();
  };
}

void StageClock::lap_encoding(Report& report, c10::Device device) {
  lap(report, "encode", "vae", std::exchange(*decoding_, 0), device);
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

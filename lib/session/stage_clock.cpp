#include "lib/session/stage_clock.h"

#include <span>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/sha256.h"
#include "lib/runtime/runtime.h"

namespace diptych {

void StageClock::start() {
  last_ = steady_seconds();
}

double StageClock::lap(Report& report, const std::string& stage, at::Device device) {
  synchronize(device);
  const double now = steady_seconds(), seconds = now - std::exchange(last_, now);
  add(report, stage, seconds);
  return seconds;
}

void StageClock::lap(Report& report, const std::string& stage, const std::string& later,
                     double later_seconds, at::Device device) {
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

BackgroundHash::BackgroundHash(std::function<std::string(const std::stop_token&)> hash)
    : thread_([this, hash = std::move(hash)](const std::stop_token& stop) {
        try {
          promise_.set_value(hash(stop));
        } catch (...) {
          promise_.set_exception(std::current_exception());
        }
      }) {}

std::string tensor_hash(const Tensor& values) {
  const Tensor bytes = values.to(at::kCPU).contiguous();
  const auto* data = static_cast<const std::byte*>(bytes.const_data_ptr());
  return sha256_hex(std::span(data, bytes.nbytes()));
}

std::string short_hash(const Tensor& values) {
  return tensor_hash(values.to(at::kFloat)).substr(0, 16);
}

void require_finite(const Tensor& values, std::string_view what) {
  if (values.isfinite().all().item<bool>()) return;
  throw RunError("{} is not finite (NaN or infinity): weights, start noise or scales out of range",
                 what);
}

}  // namespace diptych

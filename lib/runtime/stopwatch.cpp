#include "lib/runtime/stopwatch.h"

#include "lib/base/log.h"
#include "lib/runtime/gpu.h"

namespace diptych {
namespace {

class HostStopwatch final : public Stopwatch {
 public:
  void start() override { started_ = steady_seconds(); }
  void stop() override { seconds_ += steady_seconds() - started_; }
  double seconds() override { return seconds_; }

 private:
  double started_ = 0, seconds_ = 0;
};

}  // namespace

std::unique_ptr<Stopwatch> make_stopwatch(c10::Device device) {
  return device.is_cuda() ? gpu::make_stopwatch(device) : std::make_unique<HostStopwatch>();
}

}  // namespace diptych

// Work that is launched many times over: as CUDA graphs, which spare the host its launches. The
// work must read and write tensors that stay where they are, and may not wait for the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <c10/core/Device.h>

namespace diptych {

class LaunchGraphs {
 public:
  virtual ~LaunchGraphs() = default;
  // Does the work of this key once: the first time by calling it, which also makes the handles and
  // plans that no graph may hold; the second time it is captured, then and later replayed. Whatever
  // has a key of its own is captured apart, in memory shared by all: what must outlast the next
  // call of run() is made before the first one. At most two calls are under way at once; the host
  // waits for the one before them, so that progress and interrupts keep pace with the device.
  virtual void run(std::int64_t key, const std::function<void()>& work) = 0;
  virtual void finish() = 0;  // waits for all of it
};

// Work by calls of run() is ordered among itself and behind what was launched before this, but not
// behind what is launched on other streams later: that is to be waited for. The current stream sees
// it after finish(). Null where the device is not CUDA.
std::unique_ptr<LaunchGraphs> make_launch_graphs(c10::Device device);

}  // namespace diptych

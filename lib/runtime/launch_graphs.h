// Work that is launched many times over: as CUDA graphs, which spare the host its launches. The
// work must read and write tensors that stay where they are, and may not wait for the device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <c10/core/Device.h>

namespace diptych {

struct RepeatedWork {
  std::int64_t key = 0, times = 0;
  std::function<void()> once;  // the same for all of a key
};

class LaunchGraphs {
 public:
  virtual ~LaunchGraphs() = default;
  // Does all works in order, each so many times: launches them without looking at the device, then
  // waits for one after the other and calls `after` behind each, which launches nothing. What that
  // throws passes: the rest stays launched, and neither this nor the destructor waits for it. More
  // than 256 are launched in parts, as a stream holds only so many.
  //
  // The first time of a key is a call of its work, which also makes the handles and plans that no
  // graph may hold; before the second it is captured, while the device does what was launched until
  // then; from then on it is replayed. Whatever has a key of its own is captured apart, in memory
  // shared by all: what must outlast the next work is made before run(). Returns whether anything
  // was replayed.
  virtual bool run(std::span<const RepeatedWork> works, const std::function<void()>& after) = 0;
  // Calls each work once and captures it, so that run() only replays. What it computes is not used.
  virtual void prepare(std::span<const RepeatedWork> works) = 0;
};

// What is run is ordered behind what was launched before this, but not behind what is launched on
// other streams later: that is to be waited for. The current stream sees it after run(), and, where
// that threw, behind the destructor. Null where the device is not CUDA.
std::unique_ptr<LaunchGraphs> make_launch_graphs(c10::Device device);

}  // namespace diptych

// How long parts of what a process does take on a device, all of them together.
#pragma once

#include <memory>

#include <c10/core/Device.h>

namespace diptych {

class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  // Before and after a part. On CUDA marks in the current stream of the device, which the host does
  // not wait for; not while work is captured.
  virtual void start() = 0;
  virtual void stop() = 0;
  // Of all parts so far; waits for the device.
  virtual double seconds() = 0;
};

// CPU: the host's clock. Throws InputError for CUDA in a build without it.
std::unique_ptr<Stopwatch> make_stopwatch(c10::Device device);

}  // namespace diptych

// A build without CUDA.
#include "lib/base/error.h"
#include "lib/runtime/launch_times.h"

namespace diptych {

double launch_milliseconds(std::span<const std::function<void()>>, int, c10::Device device) {
  throw InputError("nothing can be timed on {}: this diptych was built without CUDA", device.str());
}

}  // namespace diptych

#include "lib/runtime/spare_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace diptych {

void release_spare_memory(at::Device device) {
  if (!device.is_cpu()) c10::getDeviceAllocator(device.type())->emptyCache();
}

}  // namespace diptych

// Memory of a device that no tensor takes.
#pragma once

#include <c10/core/Device.h>

namespace diptych {

// Gives back what the allocator keeps for later, so that the next model finds it free. Nothing on
// the CPU.
void release_spare_memory(at::Device device);

}  // namespace diptych

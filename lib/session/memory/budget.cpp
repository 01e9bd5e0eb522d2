#include "lib/session/memory/budget.h"

#include "lib/base/error.h"
#include "lib/runtime/host_memory.h"
#include "lib/runtime/runtime.h"

namespace diptych {

MemoryBudget MemoryBudget::now(double max_vram, c10::Device device) {
  MemoryBudget budget;
  budget.host = available_host_memory();
  if (!device.is_cuda()) {
    if (max_vram > 0)
      throw InputError(Setting::of("max_vram"), "is of a GPU, the run is on the CPU");
    return budget;
  }
  budget.limited = max_vram > 0;
  constexpr double kGib = 1 << 30;
  const auto free = free_gpu_memory(static_cast<std::size_t>(device.index()));
  if (free) budget.device = static_cast<std::int64_t>(*free) + kCudaBytes;  // it has its context
  if (budget.limited) {
    const auto allowed = static_cast<std::int64_t>(max_vram * kGib);
    if (budget.device && *budget.device < allowed) {
      throw InputError(Setting::of("max_vram"), "found {} GiB, but {:.1f} GiB are free", max_vram,
                       static_cast<double>(*budget.device) / kGib);
    }
    budget.device = allowed;
  }
  return budget;
}

}  // namespace diptych

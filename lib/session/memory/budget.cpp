#include "lib/session/memory/budget.h"

#include "lib/base/error.h"
#include "lib/runtime/host_memory.h"

namespace diptych {

MemoryBudget MemoryBudget::of(double max_vram, const Runtime& runtime) {
  MemoryBudget budget;
  budget.host = available_host_memory();
  if (!runtime.device.is_cuda()) {
    if (max_vram > 0)
      throw InputError(Setting::of("max_vram"), "needs a GPU; this run is on the CPU");
    return budget;
  }
  budget.limited = max_vram > 0;
  constexpr double kGib = 1 << 30;
  const auto free = runtime.opening == nullptr
                        ? free_gpu_memory(static_cast<std::size_t>(runtime.device.index()))
                        : runtime.opening->free_bytes();
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

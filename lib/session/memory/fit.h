// The choices that make a run fit into memory. The family gives the costs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lib/base/choices.h"
#include "lib/base/setting.h"
#include "lib/session/memory/budget.h"
#include "lib/session/memory/plan.h"

namespace diptych {

struct PixelSize {
  std::int64_t width = 0, height = 0;
};

// What can be left in host memory.
struct OffloadUnits {
  std::int64_t count = 0, bytes = 0;  // units, and bytes of each
  // These come first on the device: every run goes through them. Where they all stay, two slots do
  // for the others: one in use, one being filled.
  std::int64_t always_used = 0;
  std::int64_t slots = 0;  // otherwise
};

using PlanFn = std::function<MemoryPlan(const MemoryChoice& choice, PixelSize size)>;

// Another form of the weights, in which a run may fit: what to give for it, and its plan.
struct WeightForm {
  std::vector<Setting> flags;
  PlanFn plan;
};

// What a run costs.
struct MemoryCosts {
  PlanFn plan;
  PixelSize size;              // of the painted picture; none where nothing is painted
  std::int64_t size_step = 1;  // pixels: sizes are multiples of it
  std::int64_t branches = 1;   // distinct guidance contexts
  bool has_strips = false;     // an autoencoder is used, and may work in strips
  OffloadUnits offload;
  std::vector<WeightForm> forms;  // for advice, never chosen
};

struct MemoryWishes {
  OffloadWish offload = OffloadWish::automatic;
  TilingWish tiling = TilingWish::automatic;
  std::optional<bool> batched;  // nullopt: chosen here
};

// The plan of the first way that fits. What was not wished for is chosen in the order of what it
// costs: strips, sequential guidance, then (batched again, if it can be) offload with as many units
// on the device as there is room for. `layers` without --max-vram keeps none there. Throws
// InputError, one line: what is needed, what is available, and which flags, all tried with this
// plan, would make it fit. On the CPU nothing is chosen but what is wished, and the limit is what
// the host has left.
MemoryPlan fit_memory(const MemoryCosts& costs, const MemoryWishes& wishes,
                      const MemoryBudget& budget);

// The same once the weights are loaded: what is offloaded stays so. Throws InputError where the
// request needs more than that leaves.
MemoryPlan refit_memory(const MemoryCosts& costs, const MemoryWishes& wishes,
                        const MemoryBudget& budget, const std::optional<OffloadChoice>& offload);

// Throws InputError for weights that are to wait in host memory, where the run is there anyway.
void check_offload(OffloadWish wish, const MemoryBudget& budget);

}  // namespace diptych

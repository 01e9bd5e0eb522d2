// How much memory a run may take.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/runtime/runtime.h"

namespace diptych {

// What the process takes of the device beside its tensors: the CUDA context, code of libraries.
// limit_memory() is to be given what is left of --max-vram.
inline constexpr std::int64_t kCudaBytes = std::int64_t{3} << 28;  // 0.75 GiB

struct MemoryBudget {
  std::optional<std::int64_t> device;  // free bytes, or --max-vram; nullopt: the run is on the CPU
  bool limited = false;                // `device` is --max-vram
  std::optional<std::int64_t> host;    // available bytes, where the system tells

  // What was free when the runtime's device was opened, or max_vram (GiB, 0 = no limit). Throws
  // InputError for a limit that there is not.
  static MemoryBudget of(double max_vram, const Runtime& runtime);
};

}  // namespace diptych

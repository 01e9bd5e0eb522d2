// The parts of a Wan transformer that LoRA files change, and which of their differences count as
// diffusers counts them (specs: wan-weights.md 4).
#pragma once

#include <vector>

#include "lib/models/lora/lora.h"
#include "lib/models/wan/config.h"

namespace diptych {

// Those of an image branch are listed as absent where the model has none.
std::vector<LoraModule> wan_lora_modules(const WanConfig& config);

}  // namespace diptych

// What a Qwen3 takes of the device's memory, from sizes alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lib/pipelines/qwen3_dflash/checkpoint.h"
#include "lib/session/memory/fit.h"

namespace diptych {

struct Qwen3RunSizes {
  std::int64_t texts = 1;           // that share forwards
  std::int64_t rows = 0;            // of all: prompts and what may follow them
  std::int64_t longest_prompt = 0;  // tokens
  std::int64_t block = 0;           // as SpeculativeRequest has it
  bool graphs = true;               // likewise
};

// Why such blocks cannot be captured, or nothing: why_not_on_device() of the checkpoint's models.
std::optional<std::string> blocks_uncaptured(const Qwen3Checkpoint& checkpoint, std::int64_t block,
                                             const Runtime& runtime);

// `checkpoint` and `runtime` must outlive the costs.
MemoryCosts qwen3_costs(const Qwen3Checkpoint& checkpoint, const Qwen3RunSizes& sizes,
                        const Runtime& runtime);

}  // namespace diptych

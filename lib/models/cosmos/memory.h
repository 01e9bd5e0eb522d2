// What a Cosmos-Predict2 transformer takes of the device's memory, from the sizes alone. What an
// allocator and the backends of attention and products add is not among it.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/models/cosmos/cosmos.h"

namespace diptych {

struct CosmosForward {
  CosmosLatentSize size;
  std::int64_t samples = 1;
  std::int64_t times = 1;      // different timesteps: 2 where frames are known
  std::int64_t text_keys = 0;  // the capacity of the context
  SharedKeys shared = SharedKeys::weighted;
  // The operations in plain torch, as on the CPU: more copies, and of quantised weights one in
  // float32.
  bool reference_kernels = false;
};

// On the device; nothing of it is mapped.
std::int64_t cosmos_weight_bytes(const CosmosConfig& config, const MatrixFormat& format,
                                 const std::optional<BlockOffload>& offload = {});
std::int64_t cosmos_context_bytes(const CosmosConfig& config, const CosmosForward& forward,
                                  at::ScalarType dtype);
std::int64_t cosmos_plan_bytes(const CosmosConfig& config, const CosmosForward& forward,
                               at::ScalarType dtype);
// The most that is held at once from embed_time() to head(), their input and output and the two
// above not among it.
std::int64_t cosmos_forward_bytes(const CosmosConfig& config, const CosmosForward& forward,
                                  const MatrixFormat& format);

}  // namespace diptych

// What a Wan transformer takes of the device's memory, from sizes alone.
#pragma once

#include <optional>

#include "lib/models/wan/wan.h"

namespace diptych {

// On the device, where `offload` says with the places that the others pass through.
std::int64_t wan_weight_bytes(const WanConfig& config, const MatrixFormat& format,
                              const std::optional<BlockOffload>& offload = {});
// Of one block's matrices, which is what each block fewer on the device saves.
std::int64_t wan_block_bytes(const WanConfig& config, const MatrixFormat& format);
// What the host holds of them.
std::int64_t wan_host_bytes(const WanConfig& config, const MatrixFormat& format,
                            const std::optional<BlockOffload>& offload);

struct WanForwardSizes {
  WanLatentSize latent;
  std::int64_t samples = 1;
  std::int64_t times = 1;       // different timesteps of a step
  std::int64_t text_keys = 0;   // of the longest text: its rows and one
  std::int64_t image_keys = 0;  // or 0
  SharedKeys shared = SharedKeys::weighted;
  bool reference = false;  // of the element-wise operations, in plain ATen (the CPU)
};
// Of a WanContext.
std::int64_t wan_context_bytes(const WanConfig& config, const WanForwardSizes& sizes,
                               at::ScalarType dtype);
// The most bytes that a step (embed_time to head) holds at once, its latents and result among them.
// Weights, the context and what the attention backend takes and an allocator adds are not.
std::int64_t wan_step_bytes(const WanConfig& config, const WanForwardSizes& sizes,
                            const MatrixFormat& format);

}  // namespace diptych

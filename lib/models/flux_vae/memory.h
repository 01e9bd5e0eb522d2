// What the autoencoder's passes take of the device's memory, from the sizes alone.
#pragma once

#include <cstdint>
#include <optional>

#include "lib/models/flux_vae/flux_vae.h"

namespace diptych {

// The most bytes of feature maps held at once, float32, one picture of `width` x `height` pixels;
// weights and what an allocator adds are not among them.
std::int64_t vae_decode_bytes(const FluxVaeConfig& config, std::int64_t width, std::int64_t height,
                              const std::optional<VaeStrips>& strips);
std::int64_t vae_encode_bytes(const FluxVaeConfig& config, std::int64_t width, std::int64_t height,
                              const std::optional<VaeStrips>& strips);
std::int64_t vae_weight_bytes(const FluxVaeConfig& config);  // float32

}  // namespace diptych

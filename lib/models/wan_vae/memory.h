// What the Wan autoencoder's passes take of the device's memory, from the sizes alone.
#pragma once

#include "lib/models/wan_vae/wan_vae.h"

namespace diptych {

struct WanVaeClip {
  std::int64_t width = 0, height = 0, frames = 1;  // pixels; frames of the clip, not of its latent
};

// The most bytes of feature maps and histories held at once in a pass over a clip. From the third
// chunk on (nine frames) it does not grow. Weights, the clip, its latent, attention's scores on a
// GPU (at most 64 MiB, and not at the peak of the released sizes) and what an allocator or a
// convolution's workspace adds are not among them. `precision` is that of the device
// (WanVaePrecision::on).
std::int64_t wan_vae_decode_bytes(const WanVaeConfig& config, const WanVaeClip& clip,
                                  WanVaePrecision precision);
// In tiles, of which one is on the device at a time; as above where the clip is no larger than one.
std::int64_t wan_vae_decode_bytes(const WanVaeConfig& config, const WanVaeClip& clip,
                                  WanVaePrecision precision, const WanVaeTiling& tiling);
std::int64_t wan_vae_encode_bytes(const WanVaeConfig& config, const WanVaeClip& clip,
                                  WanVaePrecision precision);
std::int64_t wan_vae_encode_bytes(const WanVaeConfig& config, const WanVaeClip& clip,
                                  WanVaePrecision precision, const WanVaeTiling& tiling);
std::int64_t wan_vae_weight_bytes(const WanVaeConfig& config, WanVaePrecision precision);

}  // namespace diptych

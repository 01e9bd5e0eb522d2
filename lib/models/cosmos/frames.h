// Frames of a clip at the ends of a Cosmos-Predict2 run: those that are given, and the finished
// ones.
#pragma once

#include <cstdint>

#include "lib/tensor/types.h"

namespace diptych {

// How noisy given frames are taken to be (diffusers' sigma_conditioning).
inline constexpr float kCosmosKnownSigma = 0.0001F;

// Latent frames that `given` frames of pixels decide, of a clip of `frames`: a latent frame holds
// four, but for the first one. Both at least 1; of more frames than the clip has the last ones
// count.
std::int64_t cosmos_known_frames(std::int64_t given, std::int64_t frames);

// [3, n, H, W] around -1..1 -> uint8 [n, H, W, 3]: 255 * p cut off, as the official pipelines'
// output is behind their safety checker (specs/cosmos.md, section 7).
Tensor cosmos_frames_to_uint8(const Tensor& frames);

}  // namespace diptych

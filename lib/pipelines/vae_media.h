// What a Wan autoencoder, 2.1 or 2.2, makes of a final latent: the picture or clip of a result.
#pragma once

#include <functional>
#include <optional>

#include "lib/base/log.h"
#include "lib/config/run_config.h"
#include "lib/models/wan_vae/tiling.h"
#include "lib/models/wan_vae/wan_vae.h"
#include "lib/runtime/runtime.h"
#include "lib/session/result.h"

namespace diptych {

struct LatentFrames {
  const WanVae& vae;       // outlives the media
  Tensor latent;           // [t, h, w, z] normalised
  Log& log;                // outlives the media
  Ranks* ranks = nullptr;  // that share the request; null: this process is alone
  std::optional<WanVaeTiling> tiling = {};
  Tensor (*to_uint8)(const Tensor& frames) = frames_to_uint8;
};

// Called with each chunk: frames [3, n, H, W] in -1..1 on the device of the weights, and what is
// shown of them, uint8 [n, H, W, 3] on the CPU.
using FramesObserver = std::function<void(const Tensor& frames, const Tensor& shown)>;

// A clip of this shape, decoded when its frames are asked for; without a shape the picture that is
// the first frame. With an observer everything is decoded before this returns. Decoding throws
// RunError for frames that are not finite, and Interrupted. Ranks that share the request decode
// together if each can have some of the latent's rows and none decodes in tiles, else each for
// itself, and the log says why, once; all of them call this, in the same order.
Media decode_media(const LatentFrames& source, const std::optional<ClipShape>& shape,
                   const FramesObserver& observer = {});

// What the autoencoder computes in by --vae-dtype; `automatic` is the dtype of the run, or tf32 for
// runs in bfloat16 on CUDA where `exact`: the family's official code decodes in float32.
WanVaePrecision wan_vae_precision(const RunConfig& run, const Runtime& runtime, bool exact);

}  // namespace diptych

#include "lib/pipelines/vae_media.h"

#include <vector>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"

namespace diptych {
namespace {

WanVaeDecoder decoder_of(const LatentFrames& source) {
  if (source.tiling) return {source.vae, source.latent, *source.tiling};
  return {source.vae, source.latent};
}

// `take` gets what is shown.
void decode_frames(const LatentFrames& source, const FramesObserver& observer,
                   const std::function<void(const Tensor& shown)>& take) {
  WanVaeDecoder decoder = decoder_of(source);
  const bool narrow = source.vae.decoder.conv1.options().dtype() == at::kHalf;
  const char* what = narrow ? "the picture decoded by --vae-dtype tf32 (float16 ends at 65504, "
                              "float32 does not)"
                            : "the decoded picture";
  while (decoder.has_next()) {
    check_interrupted();
    const Tensor frames = decoder.next();
    require_finite(frames, what);
    const Tensor shown = source.to_uint8(frames).to(at::kCPU);
    if (observer) observer(frames, shown);
    take(shown);
  }
}

}  // namespace

Media decode_media(const LatentFrames& source, const std::optional<ClipShape>& shape,
                   const FramesObserver& observer) {
  Clip clip;
  if (shape) clip.shape = *shape;
  if (shape && !observer) {
    clip.decode = [source](const std::function<void(const Tensor&)>& take) {
      decode_frames(source, {}, take);
    };
    return clip;
  }
  std::vector<Tensor> chunks;
  decode_frames(source, observer, [&](const Tensor& shown) { chunks.push_back(shown); });
  if (!shape) return Picture{chunks.front()[0]};
  clip.decode = [chunks](const std::function<void(const Tensor&)>& take) {
    for (const Tensor& shown : chunks) take(shown);
  };
  return clip;
}

WanVaePrecision wan_vae_precision(const RunConfig& run, const Runtime& runtime, bool exact) {
  switch (run.vae_dtype) {
    case VaeDtype::float32:
      return at::kFloat;
    case VaeDtype::tf32:
      return WanVaePrecision::tf32();
    case VaeDtype::bfloat16:
      return at::kBFloat16;
    case VaeDtype::automatic:
      break;
  }
  const bool narrow = runtime.device.is_cuda() && runtime.dtype == at::kBFloat16;
  return exact && narrow ? WanVaePrecision::tf32() : runtime.dtype;
}

}  // namespace diptych

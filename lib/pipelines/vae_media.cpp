#include "lib/pipelines/vae_media.h"

#include <vector>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"

namespace diptych {
namespace {

using TakeFrames = std::function<void(const Tensor& shown)>;

// Whether ranks may decode it together, as far as each knows without the others.
bool may_divide(const LatentFrames& source) {
  return WanVaeBand::divides(source.ranks, source.latent.size(1));
}

bool splits_into_tiles(const LatentFrames& source) {
  return source.tiling &&
         source.tiling->splits(source.vae.config, source.latent.size(1), source.latent.size(2));
}

void log_why_undivided(const LatentFrames& source, const std::string& why) {
  source.log.info_once(fmt::format("decoding is not divided: {}", why));
}

// Whether they do, and in the log why not. Tiles are a matter of each rank's memory: all call this,
// and one that needs them decides for all.
bool divides(const LatentFrames& source) {
  const std::size_t ranks =
      source.ranks == nullptr ? 1 : source.ranks->group(RankAxis::request).size;
  if (ranks == 1) return false;
  if (!may_divide(source)) {
    log_why_undivided(source, fmt::format("the latent has {} rows, fewer than {} processes",
                                          source.latent.size(1), ranks));
    return false;
  }
  const Tensor whole =
      at::full({1}, splits_into_tiles(source) ? 0 : 1, source.vae.mean.options().dtype(at::kInt));
  if (source.ranks->all_gather(RankAxis::request, whole).min().item<int>() == 1) return true;
  log_why_undivided(source, "a process decodes in tiles (--vae-tiling)");
  return false;
}

WanVaeDecoder decoder_of(const LatentFrames& source, bool divided) {
  if (divided) return {source.vae, source.latent, *source.ranks};
  if (source.tiling) return {source.vae, source.latent, *source.tiling};
  return {source.vae, source.latent};
}

// `take` gets what is shown; empty: nothing is.
void decode_frames(const LatentFrames& source, bool divided, const FramesObserver& observer,
                   const TakeFrames& take) {
  WanVaeDecoder decoder = decoder_of(source, divided);
  const bool narrow = source.vae.decoder.conv1.options().dtype() == at::kHalf;
  const char* what = narrow ? "the picture decoded by --vae-dtype tf32 (float16 ends at 65504, "
                              "float32 does not)"
                            : "the decoded picture";
  while (decoder.has_next()) {
    check_interrupted();
    const Tensor frames = decoder.next();
    require_finite(frames, what);
    if (!take) continue;
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
    clip.decode = [source](const TakeFrames& take) {
      decode_frames(source, divides(source), {}, take);
    };
    if (may_divide(source)) {
      clip.help_decode = [source] {
        if (divides(source)) decode_frames(source, true, {}, {});
      };
    }
    return clip;
  }
  std::vector<Tensor> chunks;
  decode_frames(source, divides(source), observer,
                [&](const Tensor& shown) { chunks.push_back(shown); });
  if (!shape) return Picture{chunks.front()[0]};
  clip.decode = [chunks](const TakeFrames& take) {
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

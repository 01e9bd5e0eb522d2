// The build without libwebp.
#include "lib/media/image_read.h"
#include "lib/media/video/clip_source.h"
#include "lib/media/video/webp_clip.h"

namespace diptych {

std::unique_ptr<ClipReader::Source> open_webp_clip(const std::filesystem::path& path,
                                                   const ClipLimits&) {
  refuse_missing_library(PictureFormat::webp, path.string());
}

std::unique_ptr<WebpAnimation> make_webp_animation(ImageSize, FrameRate, int) {
  refuse_missing_library(PictureFormat::webp, "the output");
}

}  // namespace diptych

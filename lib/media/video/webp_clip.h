// Animated WebP, through libwebpmux and libwebpdemux.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lib/base/frame_rate.h"
#include "lib/media/image.h"

namespace diptych {

class WebpAnimation {
 public:
  virtual ~WebpAnimation() = default;
  virtual void add(const std::uint8_t* rgb) = 0;  // [height, width, 3]
  virtual std::vector<std::uint8_t> finish(const PictureTexts& texts) = 0;
};

// quality: 1 to 99, or 100 for no loss. Throws InputError in a build without libwebp.
std::unique_ptr<WebpAnimation> make_webp_animation(ImageSize size, FrameRate fps, int quality);

}  // namespace diptych

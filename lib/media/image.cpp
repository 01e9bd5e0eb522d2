#include "lib/media/image.h"

#include "lib/base/error.h"

namespace diptych {

void check_image_size(std::int64_t width, std::int64_t height, std::string_view name) {
  if (width < 1 || height < 1 || width > kMaxImageSide || height > kMaxImageSide) {
    throw InputError("{}: {}x{} pixels, sides of 1 to {} are read", name, width, height,
                     kMaxImageSide);
  }
  if (width * height > kMaxImagePixels) {
    throw InputError("{}: {}x{} pixels, at most {} are read", name, width, height, kMaxImagePixels);
  }
}

}  // namespace diptych

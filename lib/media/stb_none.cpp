// The build without stb_image.
#include "lib/media/image_read.h"
#include "lib/media/stb.h"

namespace diptych {

Image decode_stb(PictureFormat format, std::span<const std::uint8_t>, std::string_view name) {
  refuse_missing_library(format, name);
}

ImageSize stb_size(PictureFormat format, std::span<const std::uint8_t>, std::string_view name) {
  refuse_missing_library(format, name);
}

}  // namespace diptych

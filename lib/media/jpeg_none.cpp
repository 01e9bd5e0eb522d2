// The build without libjpeg.
#include "lib/base/error.h"
#include "lib/media/jpeg.h"

namespace diptych {

bool jpeg_supported() {
  return false;
}

namespace {

[[noreturn]] void refuse(std::string_view name) {
  throw InputError("{}: a JPEG file, which this build cannot read (it is without libjpeg)", name);
}

}  // namespace

Image decode_jpeg(std::span<const std::uint8_t>, std::string_view name) {
  refuse(name);
}

ImageSize jpeg_size(std::span<const std::uint8_t>, std::string_view name) {
  refuse(name);
}

}  // namespace diptych

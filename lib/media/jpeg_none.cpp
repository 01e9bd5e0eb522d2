// The build without libjpeg.
#include "lib/media/image_read.h"
#include "lib/media/jpeg.h"

namespace diptych {

Image decode_jpeg(std::span<const std::uint8_t>, std::string_view name) {
  refuse_missing_library(PictureFormat::jpeg, name);
}

ImageSize jpeg_size(std::span<const std::uint8_t>, std::string_view name) {
  refuse_missing_library(PictureFormat::jpeg, name);
}

std::vector<std::uint8_t> encode_jpeg(const Tensor&, const PictureTexts&, int) {
  refuse_missing_library(PictureFormat::jpeg, "the output");
}

}  // namespace diptych

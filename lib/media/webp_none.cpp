// The build without libwebp.
#include "lib/media/image_read.h"
#include "lib/media/webp.h"

namespace diptych {

Image decode_webp(std::span<const std::uint8_t>, std::string_view name) {
  refuse_missing_library(PictureFormat::webp, name);
}

PictureTexts webp_texts(std::span<const std::uint8_t>) {
  return {};
}

ImageSize webp_size(std::span<const std::uint8_t>, std::string_view name) {
  refuse_missing_library(PictureFormat::webp, name);
}

std::vector<std::uint8_t> encode_webp(const Tensor&, const PictureTexts&, int) {
  refuse_missing_library(PictureFormat::webp, "the output");
}

}  // namespace diptych

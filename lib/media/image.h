// A decoded picture, and what the readers of all formats agree on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/media/over_white.h"
#include "lib/tensor/types.h"

namespace diptych {

// Keyword and text, both valid UTF-8: PNG's text chunks, or what EXIF and XMP hold.
using PictureTexts = std::vector<std::pair<std::string, std::string>>;

struct Image {
  Tensor rgb;           // uint8 [height, width, 3] on the CPU, as stored in the file
  PictureTexts text;    // in file order
  int orientation = 1;  // EXIF's, 1 to 8: how `rgb` is to be turned; see exif.h
};

// Of a picture as its file's header states it, upright: EXIF's orientation is applied.
struct ImageSize {
  std::int64_t height = 0, width = 0;
  bool operator==(const ImageSize&) const = default;
};

// `orientation`: EXIF's, of a picture that is stored with these sides.
constexpr ImageSize upright_size(std::int64_t height, std::int64_t width, int orientation) {
  return orientation >= 5 ? ImageSize{width, height} : ImageSize{height, width};
}

// Beyond these a file is refused before anything of its size is allocated.
constexpr std::int64_t kMaxImageSide = 65'536;
constexpr std::int64_t kMaxImagePixels = std::int64_t{1} << 28;

// Throws InputError naming the file unless both sides are 1 to kMaxImageSide and the picture has at
// most kMaxImagePixels.
void check_image_size(std::int64_t width, std::int64_t height, std::string_view name);

}  // namespace diptych

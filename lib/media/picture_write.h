// Pictures on their way out, in any of the formats that are written (base/picture_formats.h).
#pragma once

#include <cstdint>
#include <vector>

#include "lib/base/picture_formats.h"
#include "lib/media/image.h"

namespace diptych {

struct PictureEncoding {
  PictureFormat format = PictureFormat::png;
  int quality = 95;  // 1 to 100, of formats that have one
};

// uint8 [height, width, 3] with texts; png.h, jpeg.h and webp.h say how. Equal arguments give equal
// bytes with the same libraries. Throws InputError for texts that cannot be held, and for a format
// that this build does not write.
std::vector<std::uint8_t> encode_picture(const Tensor& rgb, const PictureTexts& texts,
                                         const PictureEncoding& encoding);

}  // namespace diptych

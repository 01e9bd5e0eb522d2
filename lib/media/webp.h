// WebP pictures, through libwebp and libwebpmux.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/media/image.h"

namespace diptych {

// Lossy and lossless, to the same pixels as Pillow; alpha is blended over white. The texts are
// those of XMP and EXIF (metadata.h). Throws InputError naming the file for a broken, truncated or
// oversized one, for an animation, and in a build without libwebp.
Image decode_webp(std::span<const std::uint8_t> bytes, std::string_view name);
// Of what decode_webp would read; throws likewise, but looks at no pixel.
ImageSize webp_size(std::span<const std::uint8_t> bytes, std::string_view name);

// Its texts alone, also of an animation; none where the file is damaged or the build is without
// libwebp.
PictureTexts webp_texts(std::span<const std::uint8_t> bytes);

// Writes uint8 [height, width, 3] of quality 1 to 99 on libwebp's scale; 100: lossless. The texts
// go into XMP, and "parameters" into EXIF as well. Equal arguments give equal bytes with the same
// libwebp. Throws InputError in a build without libwebp and as make_xmp().
std::vector<std::uint8_t> encode_webp(const Tensor& rgb, const PictureTexts& texts, int quality);

}  // namespace diptych

// JPEG pictures, through libjpeg-turbo, which Pillow uses as well.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lib/media/image.h"

namespace diptych {

bool jpeg_supported();  // whether this build has libjpeg

// Baseline, progressive and arithmetic-coded JPEG of 8 bits with one, three or four components, to
// the same pixels as Pillow: accurate integer DCT, smooth chroma upsampling; gray becomes R = G =
// B; CMYK and YCCK are taken as Adobe stores them (inverted) and become RGB without a profile, as
// in Pillow's cmyk2rgb (src/libImaging/Convert.c). Profiles have no effect.
// Throws InputError naming the file and libjpeg's reason for a broken, truncated or oversized file;
// also where libjpeg would only warn that pixels are lost. Bytes that belong to nothing between two
// segments lose no pixel and are skipped. Throws InputError in a build without libjpeg.
Image decode_jpeg(std::span<const std::uint8_t> bytes, std::string_view name);
// Of what decode_jpeg would read; throws likewise, but looks at no pixel.
ImageSize jpeg_size(std::span<const std::uint8_t> bytes, std::string_view name);

}  // namespace diptych

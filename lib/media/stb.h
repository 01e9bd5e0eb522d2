// Pictures through stb_image: BMP, GIF, TGA, PSD, PGM and PPM.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lib/base/picture_formats.h"
#include "lib/media/image.h"

namespace diptych {

// bmp  1, 4, 8, 16, 24 or 32 bits, plain or with channel masks. Not: run lengths, palettes behind
//      the 12-byte header of OS/2. The fourth byte of 32 bits is alpha, unless it is 0 everywhere.
// gif  the first frame.
// tga  version 2, which ends in a signature; 8, 15, 16, 24 or 32 bits, run lengths too.
// psd  the merged picture of an RGB file with 8 or 16 bits.
// pnm  binary PGM and PPM (P5, P6) with a largest value of 255.
// Alpha is blended over white. Where the file names a colour that its palette lacks, it is black.
// Throws InputError naming the file and stb_image's reason for a broken, truncated or oversized
// file; here at most kMaxStbPixels. Throws InputError in a build without stb_image.
Image decode_stb(PictureFormat format, std::span<const std::uint8_t> bytes, std::string_view name);
// Of what decode_stb would read; throws likewise, but looks at no pixel.
ImageSize stb_size(PictureFormat format, std::span<const std::uint8_t> bytes,
                   std::string_view name);

// stb_image takes up to nine bytes for each pixel.
constexpr std::int64_t kMaxStbPixels = std::int64_t{1} << 26;

}  // namespace diptych

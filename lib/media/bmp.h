// Windows and OS/2 bitmaps.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lib/media/image.h"

namespace diptych {

// 1, 4 and 8 bits with a palette (plain, RLE4, RLE8), 16, 24 and 32 bits (plain or with BITFIELDS
// masks), bottom-up or top-down, with a header of 12, 40, 52, 56, 64, 108 or 124 bytes. The same
// pixels as Pillow (PIL/BmpImagePlugin.py) where Pillow reads the file: narrow channels are widened
// by value * 255 / largest, rounded down; alpha is blended over white where a mask names it, the
// spare byte of plain 32-bit pixels is none. Pixels that a run-length file skips have colour 0.
// Throws InputError naming the file for a broken, truncated or oversized one, for JPEG or PNG
// inside a BMP, and for a pixel whose colour the palette lacks.
Image decode_bmp(std::span<const std::uint8_t> bytes, std::string_view name);
// Of what decode_bmp would read; throws likewise, but looks at no pixel.
ImageSize bmp_size(std::span<const std::uint8_t> bytes, std::string_view name);

}  // namespace diptych

// PNG pictures with their text chunks, through libpng. Nothing else: no resizing, no colour
// profiles.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/media/image.h"

namespace diptych {

// Reads any PNG as 8-bit RGB, to the same pixels as Pillow with the official BAGEL code's
// pil_img2rgb (ByteDance-Seed/Bagel, data/data_utils.py; spec bagel.md 3.1):
//   palette, 1/2/4-bit gray   expanded
//   alpha, palette's tRNS     blended over white with Pillow's 8-bit rounding
//   8-bit gray + alpha        the alpha is dropped
//   16-bit gray               clipped to 255, as Pillow's I;16 -> RGB does; not scaled
//   other 16-bit              the high byte
//   colour key (tRNS)         the pixels that have it become white; like Pillow, the low byte of
//                             the key is compared with the 8-bit pixels (1-bit gray: key 1 is 255)
// Gamma and colour profile chunks have no effect. Every chunk must have a valid CRC. `orientation`
// comes from an eXIf chunk; the pixels are not turned.
// Throws InputError naming the file and libpng's reason for a missing, broken, truncated or
// oversized file.
Image read_png(const std::filesystem::path& path);
Image decode_png(std::span<const std::uint8_t> bytes, std::string_view name);  // name: for errors
// Of what decode_png would read; throws likewise, but looks at no pixel.
ImageSize png_size(std::span<const std::uint8_t> bytes, std::string_view name);

// Writes uint8 [height, width, 3] (any device, any stride) with text chunks in front of the pixels:
// tEXt where the text is Latin-1, else iTXt, as Pillow's PngInfo.add_text chooses and A1111's
// readers expect. No time stamp: equal arguments give equal bytes with the same libpng and zlib.
// Throws InputError for a keyword or text that PNG cannot hold (keywords: 1 to 79 Latin-1
// characters without leading, trailing or double blanks; texts: UTF-8 without NUL); otherwise as
// AtomicFile.
void write_png(const std::filesystem::path& path, const Tensor& rgb,
               std::span<const std::pair<std::string, std::string>> text = {});
std::vector<std::uint8_t> encode_png(
    const Tensor& rgb, std::span<const std::pair<std::string, std::string>> text = {});

}  // namespace diptych

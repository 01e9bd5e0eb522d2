// JPEG pictures, through libjpeg-turbo, which Pillow uses as well.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lib/media/image.h"

namespace diptych {

// Baseline, progressive and arithmetic-coded JPEG of 8 bits with one, three or four components, to
// the same pixels as Pillow: accurate integer DCT, smooth chroma upsampling; gray becomes R = G =
// B; CMYK and YCCK are taken as Adobe stores them (inverted) and become RGB without a profile, as
// in Pillow's cmyk2rgb (src/libImaging/Convert.c). Profiles have no effect.
// Throws InputError naming the file and libjpeg's reason for a broken, truncated or oversized file;
// also where libjpeg would only warn that pixels are lost. Bytes that belong to nothing between two
// segments lose no pixel and are skipped. The texts are those of XMP, with its extension, and EXIF
// (metadata.h). Throws InputError in a build without libjpeg.
Image decode_jpeg(std::span<const std::uint8_t> bytes, std::string_view name);
// Of what decode_jpeg would read; throws likewise, but looks at no pixel.
ImageSize jpeg_size(std::span<const std::uint8_t> bytes, std::string_view name);

// Writes uint8 [height, width, 3] as baseline JPEG of quality 1 to 100 on libjpeg's scale: colours
// at full size from 90 on, at half of it below (4:4:4, 4:2:0), accurate integer DCT, Huffman codes
// made for the picture. The texts go into XMP, whatever their length, and "parameters" into EXIF as
// well where it fits into a segment. Equal arguments give equal bytes with the same libjpeg. Throws
// InputError in a build without libjpeg and as make_xmp().
std::vector<std::uint8_t> encode_jpeg(const Tensor& rgb, const PictureTexts& texts, int quality);

}  // namespace diptych

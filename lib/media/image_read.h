// Pictures that a user gives, of any format that base/picture_formats.h lists; the content decides,
// not the name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "lib/base/picture_formats.h"
#include "lib/media/image.h"
#include "lib/tensor/types.h"

namespace diptych {

// uint8 [height, width, 3] RGB on the CPU, upright (EXIF orientation in JPEG's APP1, PNG's eXIf and
// WebP's EXIF is applied). The pixels of PNG, JPEG and WebP are those of Pillow's
// ImageOps.exif_transpose and the official BAGEL code's pil_img2rgb (spec bagel.md 3.1); png.h,
// jpeg.h, webp.h and stb.h say how each kind becomes RGB.
// Throws InputError naming the file and what was found for one that is missing, a folder, empty,
// truncated, broken, of another format, over the limits of image.h, or of a format whose library
// this build lacks.
Tensor read_image(const std::filesystem::path& path);
// Of what read_image would return, from the file's header alone. Throws likewise; what is broken
// behind the header goes unseen.
ImageSize read_image_size(const std::filesystem::path& path);
Tensor decode_image(std::span<const std::uint8_t> bytes,
                    std::string_view name);  // name: for errors

// The same with texts and format; rgb is upright.
struct ReadPicture {
  Image image;
  PictureFormat format = PictureFormat::png;
};
ReadPicture read_picture(const std::filesystem::path& path);
ReadPicture decode_picture(std::span<const std::uint8_t> bytes, std::string_view name);

// Nothing for bytes that are no picture of these formats.
std::optional<PictureFormat> picture_format(std::span<const std::uint8_t> bytes);

// Throws InputError "<name>: a WebP file, which this build cannot handle (it is without libwebp)".
[[noreturn]] void refuse_missing_library(PictureFormat format, std::string_view name);

}  // namespace diptych

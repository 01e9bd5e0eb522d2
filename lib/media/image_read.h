// Pictures that a user gives: PNG, JPEG or BMP, whichever the content says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lib/media/image.h"
#include "lib/tensor/types.h"

namespace diptych {

// uint8 [height, width, 3] RGB on the CPU, upright (EXIF orientation in JPEG's APP1 and PNG's eXIf
// is applied). The pixels are those of Pillow's ImageOps.exif_transpose and the official BAGEL
// code's pil_img2rgb (spec bagel.md 3.1); png.h, jpeg.h and bmp.h say how each kind becomes RGB.
// Throws InputError naming the file and what was found for one that is missing, a folder, empty,
// truncated, broken, of another format, or over the limits of image.h.
Tensor read_image(const std::filesystem::path& path);
// Of what read_image would return, from the file's header alone. Throws likewise; what is broken
// behind the header goes unseen.
ImageSize read_image_size(const std::filesystem::path& path);
Tensor decode_image(std::span<const std::uint8_t> bytes,
                    std::string_view name);  // name: for errors

}  // namespace diptych

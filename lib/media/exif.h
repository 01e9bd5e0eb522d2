// The one EXIF value that changes a picture: which way up it is. Nothing else is read.
#pragma once

#include <cstdint>
#include <span>

#include "lib/tensor/types.h"

namespace diptych {

// The orientation tag of the first directory: 1 (upright) to 8. `exif` is a TIFF structure, with or
// without the "Exif\0\0" that JPEG puts in front. 1 where the tag is absent, of another type or
// value, or where the structure is damaged: that is no reason to refuse the pixels.
int exif_orientation(std::span<const std::uint8_t> exif);

// Turns a stored picture upright, as Pillow's ImageOps.exif_transpose does.
// rgb: [height, width, 3]; 5 to 8 swap the sides. Contiguous; the same tensor for 1.
Tensor upright(const Tensor& rgb, int orientation);

}  // namespace diptych

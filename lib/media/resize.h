// Bicubic and Lanczos resampling of 8-bit pictures, bit for bit that of Pillow 13.
#pragma once

#include <cstdint>

#include "lib/tensor/types.h"

namespace diptych {

// image: uint8 [H, W, 3], any stride, on the CPU -> uint8 [height, width, 3]. Antialiased: where a
// side shrinks, the filter widens with it. A side that stays is not resampled; the same size gives
// a copy.
Tensor resize_bicubic(const Tensor& image, std::int64_t height, std::int64_t width);
// The same with Lanczos' kernel of three lobes.
Tensor resize_lanczos(const Tensor& image, std::int64_t height, std::int64_t width);

}  // namespace diptych

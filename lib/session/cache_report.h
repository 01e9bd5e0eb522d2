// What a step cache costs: a picture or clip painted with it held against the same one painted
// without.
#pragma once

#include <string>

#include "lib/session/result.h"

namespace diptych {

// latent: [rows, width], rgb: uint8 [height, width, 3] or [frames, height, width, 3] on the CPU.
struct Painted {
  Tensor latent, rgb;
};
// The distances; forwards and seconds are left to the caller. Of a clip the SSIM is the mean of its
// frames', the PSNR that of all pixels.
CacheReport compare_cached(const Painted& cached, const Painted& uncached);

// All pixels of a result: uint8 [height, width, 3] or [frames, height, width, 3] on the CPU. A
// clip, which decodes once, keeps them.
Tensor pixels_of(Media& media);

// One line for the log.
std::string describe(const CacheReport& report);

}  // namespace diptych

// What a step cache costs: a picture painted with it held against the same one painted without.
#pragma once

#include <string>

#include "lib/session/result.h"

namespace diptych {

// latent: [rows, width], rgb: uint8 [height, width, 3] on the CPU.
struct PaintedPicture {
  Tensor latent, rgb;
};
// The distances; forwards and seconds are left to the caller.
CacheReport compare_cached(const PaintedPicture& cached, const PaintedPicture& uncached);

// One line for the log.
std::string describe(const CacheReport& report);

}  // namespace diptych

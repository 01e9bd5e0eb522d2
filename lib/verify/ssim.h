// The windows of SSIM over two planes; metrics.h makes the measures of them. Free of torch.
#pragma once

#include <cstddef>

namespace diptych {

inline constexpr std::size_t kSsimWindow = 11;

// Sums over positions of the window of the two factors of Wang et al. 2004, equation 12.
struct SsimSums {
  double ssim = 0;      // luminance times contrast and structure
  double contrast = 0;  // contrast and structure alone
};

// x, y: planes of `width` columns. The rows `begin` to `end` of positions; a plane has height -
// kSsimWindow + 1 of them, each with width - kSsimWindow + 1 positions.
SsimSums ssim_rows(const double* x, const double* y, std::size_t width, std::size_t begin,
                   std::size_t end);

}  // namespace diptych

// Limits on the distance between a picture and its reference, for `check` and `compare`.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/verify/metrics.h"

namespace diptych {

struct ImageGates {
  std::optional<double> min_ssim{}, min_ms_ssim{}, min_psnr{}, max_abs{}, min_cosine{};
  bool any() const { return min_ssim || min_ms_ssim || min_psnr || max_abs || min_cosine; }
  // The name of the first that is set, "min_ssim"; "" = none is.
  std::string_view first() const;
};

struct GateResult {
  std::string_view name;  // "ssim", "ms_ssim", "psnr", "max_abs", "cosine"
  double found = 0, limit = 0;
  bool at_least = true;                 // found must be at least the limit, or at most
  bool pass = false;                    // never for NaN
  std::optional<std::int64_t> frame{};  // of a clip, the one that is furthest off
};

// Throws InputError naming the flag of the first gate that no picture could meet or miss as asked:
// SSIM and cosine lie between -1 and 1, MS-SSIM between 0 and 1, PSNR is not negative, a level
// differs by 0 to 255.
void require_possible(const ImageGates& gates);

// One result per gate that is set, in the order above. Throws InputError for min_ssim and
// min_ms_ssim on a picture too small for them.
std::vector<GateResult> apply_gates(const ImageGates& gates, const ImageMetrics& metrics);
std::string describe(
    const GateResult& gate);  // "ssim 0.913 of frame 7 is below 0.95" or "ssim 0.98, at least 0.95"

}  // namespace diptych

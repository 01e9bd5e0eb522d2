// How far two clips are apart, frame by frame.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/verify/gates.h"
#include "lib/verify/metrics.h"

namespace diptych {

struct ClipMetrics {
  std::vector<ImageMetrics> frames;  // in order
};

// One measure over a clip.
struct Extreme {
  double mean = 0, worst = 0;
  std::int64_t frame = 0;  // of the worst value; the first of several
};
struct ClipExtremes {
  std::optional<Extreme> ssim, ms_ssim;  // absent where a side is below 11
  // In dB. Equal frames, whose PSNR is infinite, do not count for the mean, unless all are equal.
  Extreme psnr;
  Extreme max_abs, mean_abs, cosine;
};
ClipExtremes extremes_of(const ClipMetrics& metrics);  // at least one frame

// A gate holds where it holds for every frame: the results are of the worst ones. Throws as
// apply_gates() of a picture.
std::vector<GateResult> apply_gates(const ImageGates& gates, const ClipMetrics& metrics);

}  // namespace diptych

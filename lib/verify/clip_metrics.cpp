#include "lib/verify/clip_metrics.h"

#include <cmath>

namespace diptych {
namespace {

// NaN is worse than anything.
template <typename Value>
Extreme extreme(const ClipMetrics& metrics, bool largest_is_worst, const Value& value_of) {
  Extreme found;
  double sum = 0;
  std::int64_t finite = 0;
  for (std::size_t i = 0; i < metrics.frames.size(); ++i) {
    const double value = value_of(metrics.frames[i]);
    const bool worse = largest_is_worst ? value > found.worst : value < found.worst;
    if (i == 0 || worse || (std::isnan(value) && !std::isnan(found.worst))) {
      found.worst = value;
      found.frame = static_cast<std::int64_t>(i);
    }
    if (std::isinf(value)) continue;
    sum += value;
    ++finite;
  }
  found.mean = finite == 0 ? found.worst : sum / static_cast<double>(finite);
  return found;
}

}  // namespace

ClipExtremes extremes_of(const ClipMetrics& metrics) {
  constexpr bool kLargest = true, kSmallest = false;
  ClipExtremes all;
  if (metrics.frames.front().ssim) {
    all.ssim = extreme(metrics, kSmallest, [](const ImageMetrics& m) { return *m.ssim; });
    all.ms_ssim = extreme(metrics, kSmallest, [](const ImageMetrics& m) { return *m.ms_ssim; });
  }
  all.psnr = extreme(metrics, kSmallest, [](const ImageMetrics& m) { return m.psnr; });
  all.max_abs =
      extreme(metrics, kLargest, [](const ImageMetrics& m) { return m.difference.max_abs; });
  all.mean_abs =
      extreme(metrics, kLargest, [](const ImageMetrics& m) { return m.difference.mean_abs; });
  all.cosine =
      extreme(metrics, kSmallest, [](const ImageMetrics& m) { return m.difference.cosine; });
  return all;
}

std::vector<GateResult> apply_gates(const ImageGates& gates, const ClipMetrics& metrics) {
  const ClipExtremes all = extremes_of(metrics);
  ImageMetrics worst;
  if (all.ssim) worst.ssim = all.ssim->worst;
  if (all.ms_ssim) worst.ms_ssim = all.ms_ssim->worst;
  worst.psnr = all.psnr.worst;
  worst.difference.max_abs = all.max_abs.worst;
  worst.difference.cosine = all.cosine.worst;
  std::vector<GateResult> results = apply_gates(gates, worst);
  for (GateResult& gate : results) {
    const Extreme& extreme = gate.name == "ssim"      ? *all.ssim
                             : gate.name == "ms_ssim" ? *all.ms_ssim
                             : gate.name == "psnr"    ? all.psnr
                             : gate.name == "max_abs" ? all.max_abs
                                                      : all.cosine;
    gate.frame = extreme.frame;
  }
  return results;
}

}  // namespace diptych

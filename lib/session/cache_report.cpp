#include "lib/session/cache_report.h"

#include <fmt/format.h>

#include "lib/verify/metrics.h"

namespace diptych {

CacheReport compare_cached(const PaintedPicture& cached, const PaintedPicture& uncached) {
  CacheReport report;
  const Difference latent = difference(cached.latent, uncached.latent);
  report.latent_cosine = latent.cosine;
  report.latent_relative_l2 = latent.relative_norm;
  const ImageMetrics picture = image_metrics(cached.rgb, uncached.rgb);
  report.ssim = picture.ssim;
  report.psnr = picture.psnr;
  return report;
}

namespace {

std::string time_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.2f}s", seconds);
}

std::string speed_text(const CacheReport& report) {
  // Else both did the same work, and the times tell how they vary.
  if (report.forwards >= report.uncached_forwards) return "nothing was predicted";
  return fmt::format("{} of denoising instead of {} ({:.2f} times as fast)",
                     time_text(report.seconds), time_text(report.uncached_seconds),
                     report.uncached_seconds / report.seconds);
}

}  // namespace

std::string describe(const CacheReport& report) {
  const std::string ssim = report.ssim ? fmt::format("SSIM {:.4f}, ", *report.ssim) : "";
  return fmt::format(
      "step cache: latent cosine {:.6f}, relative L2 {:.4f}, {}PSNR {:.1f} dB; {} of {} branch "
      "forwards, {}",
      report.latent_cosine, report.latent_relative_l2, ssim, report.psnr, report.forwards,
      report.uncached_forwards, speed_text(report));
}

}  // namespace diptych

#include "lib/session/cache_report.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "lib/verify/metrics.h"

namespace diptych {
namespace {

constexpr double kWhite = 255;

void compare_frames(const Tensor& cached, const Tensor& uncached, CacheReport& report) {
  const std::int64_t frames = cached.size(0);
  double ssim = 0, mean_square = 0;
  bool has_ssim = true;
  for (std::int64_t i = 0; i < frames; ++i) {
    const ImageMetrics frame = image_metrics(cached[i], uncached[i]);
    has_ssim = has_ssim && frame.ssim.has_value();
    ssim += frame.ssim.value_or(0);
    mean_square += kWhite * kWhite / std::pow(10, frame.psnr / 10);  // 0 for an infinite PSNR
  }
  if (has_ssim) report.ssim = ssim / static_cast<double>(frames);
  mean_square /= static_cast<double>(frames);
  report.psnr = mean_square > 0 ? 10 * std::log10(kWhite * kWhite / mean_square)
                                : std::numeric_limits<double>::infinity();
}

}  // namespace

CacheReport compare_cached(const Painted& cached, const Painted& uncached) {
  CacheReport report;
  const Difference latent = difference(cached.latent, uncached.latent);
  report.latent_cosine = latent.cosine;
  report.latent_relative_l2 = latent.relative_norm;
  if (cached.rgb.dim() == 4) {
    compare_frames(cached.rgb, uncached.rgb, report);
    return report;
  }
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

Tensor pixels_of(Media& media) {
  if (const auto* picture = std::get_if<Picture>(&media)) return picture->rgb;
  Clip& clip = std::get<Clip>(media);
  std::vector<Tensor> parts;
  clip.decode([&](const Tensor& frames) { parts.push_back(frames.clone()); });
  const Tensor all = at::cat(parts);
  clip.decode = [all](const std::function<void(const Tensor&)>& take) { take(all); };
  clip.help_decode = nullptr;
  return all;
}

std::string describe(const CacheReport& report) {
  const std::string ssim = report.ssim ? fmt::format("SSIM {:.4f}, ", *report.ssim) : "";
  return fmt::format(
      "step cache: latent cosine {:.6f}, relative L2 {:.4f}, {}PSNR {:.1f} dB; {} of {} branch "
      "forwards, {}",
      report.latent_cosine, report.latent_relative_l2, ssim, report.psnr, report.forwards,
      report.uncached_forwards, speed_text(report));
}

}  // namespace diptych

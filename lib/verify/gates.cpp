#include "lib/verify/gates.h"

#include <cmath>
#include <limits>

#include "lib/base/error.h"

namespace diptych {
namespace {

void require_between(std::string_view name, std::optional<double> limit, double low, double high) {
  if (!limit || (*limit >= low && *limit <= high)) return;  // false for NaN
  const std::string range =
      std::isinf(high) ? fmt::format("at least {:g}", low) : fmt::format("{:g} to {:g}", low, high);
  throw InputError(Setting::of(name), "{:g} is out of range; expected {}", *limit, range);
}

}  // namespace

std::string_view ImageGates::first() const {
  if (min_ssim) return "min_ssim";
  if (min_ms_ssim) return "min_ms_ssim";
  if (min_psnr) return "min_psnr";
  if (max_abs) return "max_abs";
  return min_cosine ? "min_cosine" : "";
}

void require_possible(const ImageGates& gates) {
  require_between("min_ssim", gates.min_ssim, -1, 1);
  require_between("min_ms_ssim", gates.min_ms_ssim, 0, 1);
  require_between("min_psnr", gates.min_psnr, 0, std::numeric_limits<double>::infinity());
  require_between("max_abs", gates.max_abs, 0, 255);
  require_between("min_cosine", gates.min_cosine, -1, 1);
}

std::vector<GateResult> apply_gates(const ImageGates& gates, const ImageMetrics& metrics) {
  std::vector<GateResult> results;
  results.reserve(5);  // every gate there is; g++ 13 warns of the growth it cannot rule out
  const auto at_least = [&](std::string_view name, double found, std::optional<double> limit) {
    if (limit) results.push_back({name, found, *limit, true, found >= *limit, {}});
  };
  if ((gates.min_ssim || gates.min_ms_ssim) && !metrics.ssim) {
    throw InputError("{} needs pictures of at least 11x11 pixels; these are smaller",
                     gates.min_ssim ? "SSIM" : "MS-SSIM");
  }
  at_least("ssim", metrics.ssim.value_or(0), gates.min_ssim);
  at_least("ms_ssim", metrics.ms_ssim.value_or(0), gates.min_ms_ssim);
  at_least("psnr", metrics.psnr, gates.min_psnr);
  if (gates.max_abs) {
    const double found = metrics.difference.max_abs;
    results.push_back({"max_abs", found, *gates.max_abs, false, found <= *gates.max_abs, {}});
  }
  at_least("cosine", metrics.difference.cosine, gates.min_cosine);
  return results;
}

std::string describe(const GateResult& gate) {
  const std::string found =
      fmt::format("{} {:.6g}{}", gate.name, gate.found,
                  gate.frame ? fmt::format(" of frame {}", *gate.frame) : std::string());
  if (gate.pass)
    return fmt::format("{}, {} {:g}", found, gate.at_least ? "at least" : "at most", gate.limit);
  return fmt::format("{} is {} {:g}", found, gate.at_least ? "below" : "above", gate.limit);
}

}  // namespace diptych

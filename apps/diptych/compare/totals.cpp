#include "apps/diptych/compare/totals.h"

#include <cmath>

namespace diptych {
namespace {

void add_to(std::optional<TotalMeasure>& total, const std::string& name, double value,
            bool largest_is_worst = false) {
  if (!total) total.emplace();
  total->add(name, value, largest_is_worst);
}

// JSON has no infinity.
nlohmann::json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

}  // namespace

void TotalMeasure::add(const std::string& name, double value, bool largest_is_worst) {
  const bool is_worse = largest_is_worst ? value > worst : value < worst;
  if (worst_of.empty() || is_worse || (std::isnan(value) && !std::isnan(worst))) {
    worst = value;
    worst_of = name;
  }
  if (std::isinf(value)) return;
  sum += value;
  ++count;
}

void FolderTotals::add(const std::string& name, const ClipExtremes& extremes) {
  ++compared;
  if (extremes.max_abs.worst == 0) ++equal;
  if (extremes.ssim) add_to(ssim, name, extremes.ssim->mean);
  if (extremes.ms_ssim) add_to(ms_ssim, name, extremes.ms_ssim->mean);
  add_to(psnr, name, extremes.psnr.mean);
  add_to(max_abs, name, extremes.max_abs.worst, true);
}

void FolderTotals::add_seconds(const std::array<std::optional<double>, 2>& taken) {
  if (!taken[0] || !taken[1]) return;
  ++timed;
  for (std::size_t side : {0, 1}) seconds[side] += *taken[side];
}

nlohmann::json FolderTotals::json() const {
  nlohmann::json json = nlohmann::json::object();
  const auto put = [&](const char* name, const std::optional<TotalMeasure>& measure) {
    if (!measure) return;
    json[name] = {{"mean", finite_or_null(measure->mean())},
                  {"worst", finite_or_null(measure->worst)},
                  {"worst_of", measure->worst_of}};
  };
  put("ssim", ssim);
  put("ms_ssim", ms_ssim);
  put("psnr", psnr);
  put("max_abs", max_abs);
  if (timed > 0) json["seconds"] = seconds;
  return json;
}

}  // namespace diptych

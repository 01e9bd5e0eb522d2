// What all pairs of two folders have in common: means, the worst of them, and their times.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "lib/verify/clip_metrics.h"

namespace diptych {

// One measure over pairs, of each the mean of its frames.
struct TotalMeasure {
  double sum = 0, worst = 0;
  std::size_t count = 0;  // of finite values
  std::string worst_of;   // the pair's name
  double mean() const { return count == 0 ? worst : sum / static_cast<double>(count); }
  // Infinite values, as PSNR has of equal pictures, count for the mean only where all are.
  void add(const std::string& name, double value, bool largest_is_worst);
};

struct FolderTotals {
  std::size_t compared = 0, equal = 0;  // pictures and clips
  std::optional<TotalMeasure> ssim, ms_ssim, psnr, max_abs;
  std::array<double, 2> seconds{};  // of the pairs where both are known
  std::size_t timed = 0;

  void add(const std::string& name, const ClipExtremes& extremes);
  void add_seconds(const std::array<std::optional<double>, 2>& seconds);
  nlohmann::json json() const;  // of the measures
};

}  // namespace diptych

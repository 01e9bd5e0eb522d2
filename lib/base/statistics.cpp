#include "lib/base/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace diptych {

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return std::lerp(values[below], values[above], place - std::floor(place));
  };
  return {values.front(), at(0.25), at(0.5), at(0.75), at(0.9), values.back()};
}

}  // namespace diptych

// What repeated measurements come to.
#pragma once

#include <vector>

namespace diptych {

// Percentiles between the sorted values by linear interpolation, as numpy's default.
struct Spread {
  double min = 0, p25 = 0, median = 0, p75 = 0, p90 = 0, max = 0;
  double iqr() const { return p75 - p25; }  // interquartile range
};
Spread spread_of(std::vector<double> values);  // at least one

}  // namespace diptych

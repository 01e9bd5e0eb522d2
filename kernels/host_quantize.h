// A row as one-byte elements (quantize_rows/quantize_rows.h) on the host, for the references.
#pragma once

#include "kernels/host_float.h"

namespace diptych::kernels {

// Writes the elements of a row of `width` values and returns its scale. `limit`: stored_limit of Q.
template <typename T, typename Q>
float quantize_row(const T* x, std::int64_t width, float limit, Q* values) {
  float most = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    const float size = std::abs(widen(x[i]));
    if (!(size <= most)) most = size;  // a NaN, too, and then it stays
    if (std::isnan(most)) break;
  }
  float scale = most / limit;
  if (scale < std::numeric_limits<float>::min()) scale = std::numeric_limits<float>::min();
  const float inverse = 1 / scale;
  for (std::int64_t i = 0; i < width; ++i) values[i] = round_to<Q>(widen(x[i]) * inverse);
  return scale;
}

}  // namespace diptych::kernels

// e4m3 on the host, for the references.
#pragma once

#include <algorithm>

#include "kernels/e4m3.h"
#include "kernels/host_float.h"

namespace diptych::kernels {

struct HostE4m3 {
  std::uint8_t bits;
};

inline float widen(HostE4m3 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x80u) << 24;
  const std::uint32_t exponent = (value.bits >> 3) & 0xfu, fraction = value.bits & 0x7u;
  if ((value.bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-9
    const float magnitude = static_cast<float>(fraction) * 0x1p-9f;
    return sign == 0 ? magnitude : -magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + (127 - 7)) << 23) | (fraction << 20));
}

template <>
inline HostE4m3 round_to<HostE4m3>(float value) {
  constexpr std::uint32_t kMost = 0x7eu;            // 448
  constexpr std::uint32_t kSmallest = 0x3c800000u;  // 2^-6, the smallest normal one
  constexpr std::uint32_t kRebias = (127 - 7) << 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  std::uint32_t code;
  if (std::isnan(value)) {
    code = 0x7fu;
  } else if (magnitude < kSmallest) {  // a multiple of 2^-9; the product is exact
    code = static_cast<std::uint32_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p9f));
  } else {
    code = std::min((magnitude - kRebias + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20, kMost);
  }
  return {static_cast<std::uint8_t>(sign | code)};
}

// Writes the codes of a row of `width` values and returns its scale.
template <typename T>
float quantise_row(const T* values, std::int64_t width, HostE4m3* codes) {
  float most = 0;
  for (std::int64_t i = 0; i < width; ++i) most = std::fmax(most, std::fabs(widen(values[i])));
  const float scale = std::fmax(most / kMostE4m3, kLeastRowScale);
  const float inverse = 1.0f / scale;
  for (std::int64_t i = 0; i < width; ++i) {
    codes[i] = round_to<HostE4m3>(widen(values[i]) * inverse);
  }
  return scale;
}

}  // namespace diptych::kernels

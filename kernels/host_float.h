// bfloat16, IEEE half and the two one-byte types on the host, for the references: storage types
// that widen to float exactly and round to nearest, ties to even. The one-byte types saturate: e4m3
// (4 bits of exponent, 3 of fraction, no infinity; NaN stays NaN) at 448, int8 at 127 (NaN is 0).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/types.h"

namespace diptych::kernels {

struct HostBf16 {
  std::uint16_t bits;
};
struct HostF16 {
  std::uint16_t bits;
};
struct HostE4m3 {
  std::uint8_t bits;
};

inline float widen(float value) {
  return value;
}
inline float widen(HostBf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
inline float widen(HostF16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu, fraction = value.bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign == 0 ? magnitude : -magnitude;
  }
  const std::uint32_t wide = exponent == 0x1f ? 0xffu : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

inline float widen(HostE4m3 value) {
  const int exponent = (value.bits >> 3) & 0xf, fraction = value.bits & 7;
  float magnitude = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if (exponent == 0) magnitude = static_cast<float>(fraction) * 0x1p-9f;  // zero and subnormals
  if ((value.bits & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
  return (value.bits & 0x80) == 0 ? magnitude : -magnitude;
}
inline float widen(std::int8_t value) {
  return static_cast<float>(value);
}

template <typename T>
T round_to(float value);
template <>
inline float round_to<float>(float value) {
  return value;
}
template <>
inline HostBf16 round_to<HostBf16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
inline HostF16 round_to<HostF16>(float value) {
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  constexpr std::uint32_t kOverflow = 0x477ff000u;  // 65520, halfway between 65504 and 2^16
  constexpr std::uint32_t kSmallest = 0x38800000u;  // 2^-14, the smallest normal half
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > kInfinity) {
    half = 0x7e00u;  // NaN
  } else if (magnitude >= kOverflow) {
    half = 0x7c00u;
  } else if (magnitude < kSmallest) {  // a multiple of 2^-24; the product is exact
    half = static_cast<std::uint32_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f));
  } else {
    half = (magnitude - kRebias + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

template <>
inline HostE4m3 round_to<HostE4m3>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u, magnitude = bits & 0x7fffffffu;
  const float size = std::bit_cast<float>(magnitude);
  std::uint32_t code;
  if (std::isnan(value)) {
    code = 0x7fu;
  } else if (size >= 448) {
    code = 0x7eu;
  } else if (size < 0x1p-6f) {  // a multiple of 2^-9; the product is exact
    code = static_cast<std::uint32_t>(std::nearbyint(size * 0x1p9f));
  } else {
    code = (magnitude - ((127 - 7) << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  }
  return {static_cast<std::uint8_t>(sign | code)};
}
template <>
inline std::int8_t round_to<std::int8_t>(float value) {
  if (std::isnan(value)) return 0;
  return static_cast<std::int8_t>(std::nearbyint(std::clamp(value, -127.0f, 127.0f)));
}

// value as T holds it
template <typename T>
float rounded(float value) {
  return widen(round_to<T>(value));
}

// Calls body(T{}) with the host type of `dtype`.
template <typename Body>
void with_host_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(HostBf16{});
    case DType::f16:
      return body(HostF16{});
  }
}

// Calls body(Q{}) with the host type of a quantised matrix.
template <typename Body>
void with_host_stored(Stored stored, const Body& body) {
  return stored == Stored::e4m3 ? body(HostE4m3{}) : body(std::int8_t{});
}

}  // namespace diptych::kernels

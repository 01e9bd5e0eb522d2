// Rows as 8-bit floats (OCP e4m3: 4 exponent and 3 fraction bits, no infinity, largest value 448)
// with one float32 scale each, as row-wise scaled matrix products take them:
//   scale = max(max(|row|) / 448, 2^-100),  code = e4m3(value * (1 / scale))
// in float32, rounded to nearest, ties to even, saturating; value = code * scale up to rounding.
// The least scale is what rows of zeros get. A NaN is passed on and does not enter the maximum.
#pragma once

namespace diptych::kernels {

inline constexpr float kMostE4m3 = 448.0f;
inline constexpr float kLeastRowScale = 0x1p-100f;

}  // namespace diptych::kernels

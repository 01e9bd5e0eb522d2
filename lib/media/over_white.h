// Transparency, as every reader of pictures and clips treats it.
#pragma once

#include <cstdint>

namespace diptych {

// One sample blended over white with Pillow's 8-bit rounding (src/libImaging/Paste.c, BLEND).
inline std::uint8_t over_white(std::uint32_t value, std::uint32_t alpha) {
  const std::uint32_t t = alpha * value + (255 - alpha) * 255 + 128;
  return static_cast<std::uint8_t>((t + (t >> 8)) >> 8);
}

}  // namespace diptych

// What JPEG's APP1 segments begin with, for its reader and its writer (XMP specification part 3,
// 1.1.3).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace diptych {

inline constexpr std::string_view kExifPrefix("Exif\0\0", 6);
inline constexpr std::string_view kXmpPrefix("http://ns.adobe.com/xap/1.0/\0", 29);
inline constexpr std::string_view kXmpExtensionPrefix("http://ns.adobe.com/xmp/extension/\0", 35);
inline constexpr std::size_t kMaxSegmentBytes = 65'533;
// Behind the prefix of an extension: its name, the length of the whole, where this part begins.
inline constexpr std::size_t kXmpNameBytes = 32, kXmpPlaceBytes = 8;

inline bool begins_with(std::span<const std::uint8_t> data, std::string_view prefix) {
  return data.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), data.begin());
}

inline std::uint32_t big_endian(std::span<const std::uint8_t> data, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | data[at + i];
  return value;
}

}  // namespace diptych

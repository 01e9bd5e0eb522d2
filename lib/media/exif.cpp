#include "lib/media/exif.h"

#include <algorithm>
#include <string_view>

namespace diptych {
namespace {

constexpr std::uint16_t kOrientationTag = 0x0112, kShort = 3, kLong = 4;
constexpr std::size_t kEntryBytes = 12;  // tag, type, count, value

// TIFF 6.0, section 2. What lies outside the bytes reads as 0.
struct Tiff {
  std::span<const std::uint8_t> bytes;
  bool big_endian;

  std::uint32_t read(std::size_t at, std::size_t count) const {
    if (at > bytes.size() || count > bytes.size() - at) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value = value << 8 | bytes[at + (big_endian ? i : count - 1 - i)];
    }
    return value;
  }
};

std::uint32_t orientation_value(const Tiff& tiff, std::size_t entry) {
  const std::uint32_t type = tiff.read(entry + 2, 2), count = tiff.read(entry + 4, 4);
  if (count != 1 || (type != kShort && type != kLong)) return 1;
  return tiff.read(entry + 8, type == kShort ? 2 : 4);
}

std::span<const std::uint8_t> without_prefix(std::span<const std::uint8_t> exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  const bool prefixed =
      exif.size() >= kPrefix.size() && std::equal(kPrefix.begin(), kPrefix.end(), exif.begin());
  return prefixed ? exif.subspan(kPrefix.size()) : exif;
}

}  // namespace

int exif_orientation(std::span<const std::uint8_t> exif) {
  const auto bytes = without_prefix(exif);
  if (bytes.size() < 8 || bytes[0] != bytes[1] || (bytes[0] != 'I' && bytes[0] != 'M')) return 1;
  const Tiff tiff{bytes, bytes[0] == 'M'};
  if (tiff.read(2, 2) != 42) return 1;
  const std::size_t directory = tiff.read(4, 4);
  const std::size_t entries = tiff.read(directory, 2);
  std::uint32_t orientation = 1;
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (tiff.read(entry, 2) == kOrientationTag) orientation = orientation_value(tiff, entry);
  }
  return orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 1;
}

Tensor upright(const Tensor& rgb, int orientation) {
  TORCH_CHECK(rgb.dim() == 3 && orientation >= 1 && orientation <= 8,
              "[exif] expected [height, width, 3] and 1 to 8, got ", rgb.sizes(), ", ",
              orientation);
  constexpr std::int64_t kRows = 0, kColumns = 1;
  Tensor turned = orientation >= 5 ? rgb.transpose(kRows, kColumns) : rgb;
  switch (orientation) {
    case 2:  // mirrored
    case 6:  // to be turned clockwise by 90 degrees
      turned = turned.flip({kColumns});
      break;
    case 3:  // upside down
    case 7:  // mirrored at the other diagonal
      turned = turned.flip({kRows, kColumns});
      break;
    case 4:  // mirrored, upside down
    case 8:  // to be turned counterclockwise by 90 degrees
      turned = turned.flip({kRows});
      break;
    default:  // 1: upright; 5: mirrored at the diagonal
      break;
  }
  return turned.contiguous();
}

}  // namespace diptych

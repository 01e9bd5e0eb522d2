#include "lib/media/exif.h"

#include <algorithm>
#include <string_view>

namespace diptych {
namespace {

constexpr std::uint16_t kOrientationTag = 0x0112;
constexpr std::uint32_t kByte = 1, kAscii = 2, kShort = 3, kLong = 4, kUndefined = 7;
constexpr std::size_t kEntryBytes = 12;  // tag, type, count, value

std::span<const std::uint8_t> without_prefix(std::span<const std::uint8_t> exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  const bool prefixed =
      exif.size() >= kPrefix.size() && std::equal(kPrefix.begin(), kPrefix.end(), exif.begin());
  return prefixed ? exif.subspan(kPrefix.size()) : exif;
}

}  // namespace

std::optional<Tiff> Tiff::open(std::span<const std::uint8_t> exif) {
  const auto bytes = without_prefix(exif);
  if (bytes.size() < 8 || bytes[0] != bytes[1] || (bytes[0] != 'I' && bytes[0] != 'M'))
    return std::nullopt;
  const Tiff tiff{bytes, bytes[0] == 'M'};
  return tiff.read(2, 2) == 42 ? std::optional(tiff) : std::nullopt;
}

std::uint32_t Tiff::read(std::size_t at, std::size_t count) const {
  if (at > bytes.size() || count > bytes.size() - at) return 0;
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value = value << 8 | bytes[at + (big_endian ? i : count - 1 - i)];
  }
  return value;
}

std::optional<std::size_t> Tiff::entry(std::size_t directory, std::uint16_t tag) const {
  std::optional<std::size_t> found;
  const std::size_t entries = read(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t at = directory + 2 + i * kEntryBytes;
    if (at + kEntryBytes > bytes.size()) break;  // what is missing would read as 0
    if (read(at, 2) == tag) found = at;
  }
  return found;
}

std::uint32_t Tiff::number(std::size_t directory, std::uint16_t tag, std::uint32_t other) const {
  const auto at = entry(directory, tag);
  if (!at) return other;
  const std::uint32_t type = read(*at + 2, 2), count = read(*at + 4, 4);
  if (count != 1 || (type != kShort && type != kLong)) return other;
  return read(*at + 8, type == kShort ? 2 : 4);
}

std::span<const std::uint8_t> Tiff::value(std::size_t directory, std::uint16_t tag) const {
  const auto at = entry(directory, tag);
  if (!at) return {};
  const std::uint32_t type = read(*at + 2, 2);
  const std::size_t count = read(*at + 4, 4);
  if (type != kAscii && type != kUndefined && type != kByte) return {};
  const std::size_t begin = count <= 4 ? *at + 8 : read(*at + 8, 4);
  if (begin > bytes.size() || count > bytes.size() - begin) return {};
  return bytes.subspan(begin, count);
}

int exif_orientation(std::span<const std::uint8_t> exif) {
  const auto tiff = Tiff::open(exif);
  if (!tiff) return 1;
  const std::uint32_t orientation = tiff->number(tiff->first_directory(), kOrientationTag, 1);
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

#include "lib/media/video/clip_start.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace diptych {
namespace {

using namespace std::string_view_literals;

struct Magic {
  std::size_t at;
  std::string_view bytes;
};

constexpr std::string_view kEbml = "\x1A\x45\xDF\xA3"sv, kSegment = "\x18\x53\x80\x67"sv;
constexpr std::array kMagic = {
    Magic{4, "ftyp"sv},
    Magic{4, "moov"sv},
    Magic{4, "mdat"sv},
    Magic{4, "wide"sv},
    Magic{0, kEbml},
    Magic{8, "AVI "sv},
    Magic{0, "OggS"sv},
    Magic{0, "FLV\x01"sv},
    Magic{0, "\x30\x26\xB2\x75\x8E\x66\xCF\x11"sv},
    Magic{0, "\0\0\x01\xBA"sv},
    Magic{0, "\0\0\x01\xB3"sv},
    Magic{0, "YUV4MPEG2"sv},
    Magic{0, "DKIF"sv},
};
constexpr std::array kExtensions = {".mp4"sv, ".m4v"sv, ".mov"sv,  ".webm"sv, ".mkv"sv,
                                    ".avi"sv, ".mpg"sv, ".mpeg"sv, ".ts"sv,   ".m2ts"sv,
                                    ".ogv"sv, ".flv"sv, ".wmv"sv,  ".3gp"sv,  ".y4m"sv};

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A number of EBML (RFC 8794, section 4) at the front of `bytes`, which lose it; nothing where they
// end, or where all its bits are set: that stands for "unknown".
std::optional<std::uint64_t> take_size(std::span<const std::uint8_t>& bytes) {
  if (bytes.empty() || bytes[0] == 0) return std::nullopt;
  std::size_t length = 1;
  while ((bytes[0] & (0x80 >> (length - 1))) == 0) ++length;
  if (bytes.size() < length) return std::nullopt;
  std::uint64_t value = bytes[0] & (0xFFu >> length);
  for (std::size_t i = 1; i < length; ++i) value = value << 8 | bytes[i];
  bytes = bytes.subspan(length);
  const std::uint64_t unknown = (std::uint64_t{1} << (7 * length)) - 1;
  return value == unknown ? std::nullopt : std::optional(value);
}

std::optional<std::uint64_t> matroska_bytes(std::span<const std::uint8_t> all) {
  auto rest = all.subspan(kEbml.size());
  const auto header = take_size(rest);
  if (!header || *header > rest.size()) return std::nullopt;
  rest = rest.subspan(*header);
  if (!as_text(rest).starts_with(kSegment)) return std::nullopt;
  rest = rest.subspan(kSegment.size());
  const auto segment = take_size(rest);
  if (!segment) return std::nullopt;
  return static_cast<std::uint64_t>(all.size() - rest.size()) + *segment;
}

}  // namespace

bool begins_as_video(std::span<const std::uint8_t> bytes) {
  const std::string_view text = as_text(bytes);
  // MPEG-TS: a mark every 188 bytes, or 192 behind four bytes each.
  constexpr std::uint8_t kMark = 0x47;
  const auto marked = [&](std::size_t first, std::size_t step) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (first + i * step >= bytes.size() || bytes[first + i * step] != kMark) return false;
    }
    return true;
  };
  return marked(0, 188) || marked(4, 192) || std::ranges::any_of(kMagic, [&](const Magic& magic) {
           return text.size() >= magic.at && text.substr(magic.at).starts_with(magic.bytes);
         });
}

bool named_as_video(const std::filesystem::path& path) {
  std::string extension = path.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::find(kExtensions, extension) != kExtensions.end();
}

// The extended header's flags (RFC 9649, section 2.7.1).
bool is_animated_webp(std::span<const std::uint8_t> bytes) {
  constexpr std::uint8_t kAnimation = 0x02;
  const std::string_view text = as_text(bytes);
  return text.size() > 20 && text.starts_with("RIFF"sv) && text.substr(8, 8) == "WEBPVP8X" &&
         (bytes[20] & kAnimation) != 0;
}

std::optional<std::uint64_t> stated_file_bytes(std::span<const std::uint8_t> bytes) {
  const std::string_view text = as_text(bytes);
  if (text.starts_with(kEbml)) return matroska_bytes(bytes);
  if (!text.starts_with("RIFF"sv) || text.size() < 12 || text.substr(8, 4) != "AVI ")
    return std::nullopt;
  constexpr std::uint64_t kRiffBytes = 8, kOpen = 0xFFFFFFFF;  // a recorder has not come back
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 4;) length = length << 8 | bytes[i];
  return length == kOpen ? std::nullopt : std::optional(length + kRiffBytes);
}

}  // namespace diptych

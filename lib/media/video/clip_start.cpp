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

constexpr std::array kMagic = {
    Magic{4, "ftyp"sv},
    Magic{4, "moov"sv},
    Magic{4, "mdat"sv},
    Magic{4, "wide"sv},
    Magic{0, "\x1A\x45\xDF\xA3"sv},
    Magic{8, "AVI "sv},
    Magic{0, "OggS"sv},
    Magic{0, "FLV\x01"sv},
    Magic{0, "\x30\x26\xB2\x75\x8E\x66\xCF\x11"sv},
    Magic{0, "\0\0\x01\xBA"sv},
    Magic{0, "\0\0\x01\xB3"sv},
    Magic{0, "YUV4MPEG2"sv},
    Magic{0, "DKIF"sv},
    Magic{0, "nut/multimedia container"sv},
    Magic{0, "\0\0\0\x01"sv},  // a bare stream of H.264 or HEVC
};
constexpr std::array kExtensions = {".mp4"sv, ".m4v"sv,  ".mov"sv, ".webm"sv, ".mkv"sv, ".avi"sv,
                                    ".mpg"sv, ".mpeg"sv, ".ts"sv,  ".m2ts"sv, ".ogv"sv, ".flv"sv,
                                    ".wmv"sv, ".3gp"sv,  ".y4m"sv, ".nut"sv};

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool begins_as_video(std::span<const std::uint8_t> bytes) {
  const std::string_view text = as_text(bytes);
  // MPEG-TS: a mark every 188 bytes, or every 192, behind four bytes.
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

}  // namespace diptych

#include "lib/media/video/clip_length.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace diptych {
namespace {

using namespace std::string_view_literals;

// Parts of a file; what lies behind its end is not there.
struct File {
  int descriptor;
  std::uint64_t bytes;

  std::string read(std::uint64_t at, std::size_t count) const {
    if (at >= bytes) return {};
    std::string part(static_cast<std::size_t>(std::min<std::uint64_t>(count, bytes - at)), '\0');
    const ssize_t got = pread(descriptor, part.data(), part.size(), static_cast<off_t>(at));
    part.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return part;
  }
};

std::uint64_t big_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<std::uint8_t>(byte);
  return value;
}

// A number of EBML (RFC 8794, section 4) at the front of `bytes`, which lose it; nothing where they
// end, or where all its bits are set: that stands for "unknown".
std::optional<std::uint64_t> take_size(std::string_view& bytes) {
  const auto first = bytes.empty() ? 0u : static_cast<std::uint8_t>(bytes[0]);
  if (first == 0) return std::nullopt;
  std::size_t length = 1;
  while ((first & (0x80u >> (length - 1))) == 0) ++length;
  if (bytes.size() < length) return std::nullopt;
  const std::uint64_t unknown = (std::uint64_t{1} << (7 * length)) - 1;
  const std::uint64_t value = big_endian(bytes.substr(0, length)) & unknown;
  bytes.remove_prefix(length);
  return value == unknown ? std::nullopt : std::optional(value);
}

std::optional<std::uint64_t> matroska_bytes(const File& file) {
  constexpr std::string_view kSegment = "\x18\x53\x80\x67"sv;
  const std::string all = file.read(0, 4'096);
  std::string_view rest = std::string_view(all).substr(4);
  const auto header = take_size(rest);
  if (!header || *header > rest.size()) return std::nullopt;
  rest.remove_prefix(*header);
  if (!rest.starts_with(kSegment)) return std::nullopt;
  rest.remove_prefix(kSegment.size());
  const auto segment = take_size(rest);
  if (!segment) return std::nullopt;
  return all.size() - rest.size() + *segment;
}

std::optional<std::uint64_t> avi_bytes(const File& file) {
  constexpr std::uint64_t kOpen = 0xFFFFFFFF;  // a recorder has not come back
  std::string size = file.read(4, 4);
  std::ranges::reverse(size);
  const std::uint64_t length = big_endian(size);
  return length == kOpen ? std::nullopt : std::optional(length + 8);
}

// Of the boxes alone that index the samples: where a sample lies is known from them.
std::optional<std::uint64_t> mp4_bytes(const File& file) {
  constexpr int kMostBoxes = 100'000;
  std::uint64_t at = 0;
  for (int box = 0; box < kMostBoxes && at < file.bytes; ++box) {
    const std::string head = file.read(at, 16);
    if (head.size() < 8) return at + 8;
    const std::string_view kind = std::string_view(head).substr(4, 4);
    std::uint64_t size = big_endian(std::string_view(head).substr(0, 4));
    if (size == 1 && head.size() == 16) size = big_endian(std::string_view(head).substr(8));
    if (size < 8 || size > UINT64_MAX - at) return std::nullopt;  // 0: to the end
    if ((kind == "moov" || kind == "moof") && at + size > file.bytes) return at + size;
    at += size;
  }
  return std::nullopt;
}

// The last page's header (RFC 3533, section 6) lists the bytes of its segments.
std::optional<std::uint64_t> ogg_bytes(const File& file) {
  constexpr std::size_t kMostOfAPage = 65'307, kHeader = 27;
  const std::uint64_t from = file.bytes - std::min<std::uint64_t>(file.bytes, kMostOfAPage);
  const std::string end = file.read(from, kMostOfAPage);
  const std::size_t page = end.rfind("OggS");
  if (page == end.npos) return std::nullopt;
  const std::string_view rest = std::string_view(end).substr(page);
  if (rest.size() < kHeader) return from + page + kHeader;
  const auto segments = static_cast<std::uint8_t>(rest[kHeader - 1]);
  std::uint64_t size = kHeader + segments;
  for (const char each : rest.substr(kHeader, segments)) size += static_cast<std::uint8_t>(each);
  return from + page + size;
}

// What the metadata of an FLV file says, if its first 64 KiB do: "filesize" as AMF has it.
std::optional<std::uint64_t> flv_stated_bytes(const File& file) {
  constexpr std::string_view kKey = "\0\10filesize\0"sv;  // its length in front, a number behind
  constexpr std::size_t kMostOfMetadata = 65'536;
  const std::string start = file.read(0, kMostOfMetadata);
  const std::size_t at = start.find(kKey);
  if (at == start.npos || start.size() < at + kKey.size() + 8) return std::nullopt;
  const double bytes =
      std::bit_cast<double>(big_endian(std::string_view(start).substr(at + kKey.size(), 8)));
  constexpr double kMost = 1e15;
  return bytes > 0 && bytes < kMost ? std::optional(static_cast<std::uint64_t>(bytes))
                                    : std::nullopt;
}

// Behind each tag stands its size, so the last one is found from the end. Where there is none, the
// tags are followed from the front. (Adobe Flash Video File Format 10.1, annex E.)
std::optional<std::uint64_t> flv_bytes(const File& file) {
  constexpr std::uint64_t kTagHeader = 11, kSizeBehind = 4;
  const std::uint64_t stated = flv_stated_bytes(file).value_or(0);
  const auto tag_bytes = [&](std::uint64_t at) -> std::optional<std::uint64_t> {
    const std::string head = file.read(at, kTagHeader);
    if (head.size() < kTagHeader) return kTagHeader + kSizeBehind;
    const int type = static_cast<std::uint8_t>(head[0]) & 0x1F;
    if (type != 8 && type != 9 && type != 18) return std::nullopt;  // sound, video, metadata
    return kTagHeader + big_endian(std::string_view(head).substr(1, 3)) + kSizeBehind;
  };
  const std::uint64_t last = big_endian(file.read(file.bytes - kSizeBehind, 4)) + kSizeBehind;
  if (last < file.bytes && tag_bytes(file.bytes - last) == last) return stated;
  std::uint64_t at = big_endian(file.read(5, 4)) + kSizeBehind;
  while (at < file.bytes) {
    const auto size = tag_bytes(at);
    if (!size) return stated;
    at += *size;
  }
  return std::max(at, stated);
}

// The packets of an MPEG program stream (ISO/IEC 13818-1, 2.5.3) are followed from the first pack
// in the last 256 KiB from which they lead to the end. A pack that is missing as a whole is not
// missed: the code at the end of such a stream is optional.
std::optional<std::uint64_t> mpeg_ps_bytes(const File& file) {
  constexpr std::string_view kPack = "\0\0\1\xBA"sv;
  constexpr std::size_t kWindow = 262'144, kPrefix = 6;
  const std::uint64_t from = file.bytes - std::min<std::uint64_t>(file.bytes, kWindow);
  const std::string all = file.read(from, kWindow);
  const std::string_view end = all;
  // The bytes of a packet; 0: none is here.
  const auto packet_bytes = [&](std::size_t at) -> std::size_t {
    const std::string_view head = end.substr(at, 14);
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(head[i]); };
    if (!kPack.substr(0, 3).starts_with(head.substr(0, 3))) return 0;
    if (head.size() < kPrefix) return kPrefix;
    if (byte(3) == 0xB9) return 4;
    if (byte(3) < 0xB9) return 0;
    if (byte(3) != 0xBA) {
      const std::size_t length = big_endian(head.substr(4, 2));
      return length == 0 ? 0 : kPrefix + length;
    }
    const bool mpeg2 = byte(4) >> 6 == 1;
    return !mpeg2 ? 12 : head.size() < 14 ? 14 : 14u + (byte(13) & 7u);
  };
  for (std::size_t pack = end.find(kPack); pack != end.npos; pack = end.find(kPack, pack + 1)) {
    std::size_t at = pack;
    while (at < end.size()) {
      const std::size_t size = packet_bytes(at);
      if (size == 0) break;
      at += size;
    }
    if (at >= end.size()) return from + at;
  }
  return std::nullopt;
}

// The header's object of file properties (Advanced Systems Format, 3.2) states the size; 0 where
// it was not known.
std::optional<std::uint64_t> asf_bytes(const File& file) {
  constexpr std::string_view kProperties =
      "\xA1\xDC\xAB\x8C\x47\xA9\xCF\x11\x8E\xE4\x00\xC0\x0C\x20\x53\x65"sv;
  constexpr std::size_t kMostOfHeader = 65'536, kBeforeSize = 40;
  const std::string start = file.read(0, kMostOfHeader);
  const std::size_t at = start.find(kProperties);
  if (at == start.npos || start.size() < at + kBeforeSize + 8) return std::nullopt;
  std::string size = start.substr(at + kBeforeSize, 8);
  std::ranges::reverse(size);
  return big_endian(size);
}

// The bytes of a frame of YUV4MPEG, as its header's line says; nothing for a format that is not
// known.
std::optional<std::uint64_t> yuv4mpeg_frame_bytes(std::string_view line) {
  std::uint64_t width = 0, height = 0;
  std::string_view colours = "420";
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
    if (word.starts_with('C')) colours = word.substr(1);
    for (const auto& [letter, side] : {std::pair{'W', &width}, std::pair{'H', &height}}) {
      if (word.starts_with(letter))
        std::from_chars(word.data() + 1, word.data() + word.size(), *side);
    }
  }
  constexpr std::uint64_t kMostPixels = std::uint64_t{1} << 40;
  if (width == 0 || height == 0 || width > kMostPixels / height) return std::nullopt;
  const std::uint64_t luma = width * height;
  struct Layout {
    std::string_view name;
    std::uint64_t samples;
  };
  for (const auto& [name, samples] :
       {Layout{"420", luma + 2 * ((width + 1) / 2) * ((height + 1) / 2)},
        Layout{"422", luma + 2 * ((width + 1) / 2) * height}, Layout{"444alpha", 4 * luma},
        Layout{"444", 3 * luma}, Layout{"411", luma + 2 * ((width + 3) / 4) * height},
        Layout{"mono", luma}}) {
    if (!colours.starts_with(name)) continue;
    const std::string_view depth = colours.substr(name.size());  // p10; of grey 10 alone
    const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
    const bool wide = (depth.size() > 1 && depth[0] == 'p' && is_digit(depth[1])) ||
                      (!depth.empty() && is_digit(depth[0]));
    return wide ? 2 * samples : samples;
  }
  return std::nullopt;
}

// A line, then frames of one size, each behind a line of its own (mjpegtools' yuv4mpeg(5)).
std::optional<std::uint64_t> yuv4mpeg_bytes(const File& file) {
  constexpr std::size_t kMostOfLine = 4096;
  constexpr std::string_view kFrame = "FRAME";
  const std::string start = file.read(0, kMostOfLine);
  const std::size_t line = start.find('\n');
  if (line == start.npos) return std::nullopt;
  const auto frame = yuv4mpeg_frame_bytes(std::string_view(start).substr(0, line));
  if (!frame) return std::nullopt;
  std::uint64_t at = line + 1;
  while (at < file.bytes) {
    const std::string head = file.read(at, kMostOfLine);
    const std::size_t end = head.find('\n');
    if (!head.starts_with(kFrame.substr(0, head.size()))) return std::nullopt;
    if (end == head.npos) return at + head.size() + 1 + *frame;
    at += end + 1 + *frame;
  }
  return at;
}

std::optional<std::uint64_t> stated_bytes(const File& file) {
  const std::string start = file.read(0, 3 * 188);
  if (start.size() < 12) return std::nullopt;
  const auto marked = [&](std::size_t packet) {
    return start.size() > packet * 188 && start[packet * 188] == 0x47;
  };
  if (start.starts_with("\x1A\x45\xDF\xA3"sv)) return matroska_bytes(file);
  if (start.starts_with("RIFF"sv) && start.compare(8, 4, "AVI ") == 0) return avi_bytes(file);
  if (start.compare(4, 4, "ftyp") == 0) return mp4_bytes(file);
  if (start.starts_with("OggS"sv)) return ogg_bytes(file);
  if (start.starts_with("FLV\1"sv)) return flv_bytes(file);
  if (start.starts_with("\0\0\1\xBA"sv)) return mpeg_ps_bytes(file);
  if (start.starts_with("YUV4MPEG2 "sv)) return yuv4mpeg_bytes(file);
  if (start.starts_with("\x30\x26\xB2\x75\x8E\x66\xCF\x11"sv)) return asf_bytes(file);
  if (marked(0) && marked(1) && marked(2)) return (file.bytes + 187) / 188 * 188;
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> missing_file_bytes(int descriptor, std::uint64_t file_bytes) {
  const auto stated = stated_bytes({descriptor, file_bytes});
  return stated && *stated > file_bytes ? stated : std::nullopt;
}

}  // namespace diptych

#include "lib/media/video/clip_length.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

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
  if (marked(0) && marked(1) && marked(2)) return (file.bytes + 187) / 188 * 188;
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> missing_file_bytes(int descriptor, std::uint64_t file_bytes) {
  const auto stated = stated_bytes({descriptor, file_bytes});
  return stated && *stated > file_bytes ? stated : std::nullopt;
}

}  // namespace diptych

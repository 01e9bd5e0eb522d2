#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <optional>

#include "lib/base/error.h"
#include "lib/media/gif_blocks.h"
#include "lib/media/stb.h"
#include "lib/media/stb_library.h"

namespace diptych {
namespace {

// stb_image takes a file that ends early for one that goes on with zeros. It reads through these
// callbacks instead, which notice where it asks for more.
struct Source {
  std::span<const std::uint8_t> bytes;
  std::size_t at = 0;
  bool ended_early = false;
};

// stb_image refills its buffer with parts of this size, and needs none of them whole.
constexpr int kRefillBytes = 128;

int read_some(void* user, char* out, int size) {
  auto& source = *static_cast<Source*>(user);
  const std::size_t count =
      std::min(static_cast<std::size_t>(std::max(size, 0)), source.bytes.size() - source.at);
  std::memcpy(out, source.bytes.data() + source.at, count);
  source.at += count;
  const bool whole = static_cast<int>(count) == size;
  if (!whole && (count == 0 || size != kRefillBytes)) source.ended_early = true;
  return static_cast<int>(count);
}

void skip_some(void* user, int count) {
  auto& source = *static_cast<Source*>(user);
  const auto to = static_cast<std::int64_t>(source.at) + count;
  source.at = static_cast<std::size_t>(
      std::clamp<std::int64_t>(to, 0, static_cast<std::int64_t>(source.bytes.size())));
}

int at_end(void* user) {
  const auto& source = *static_cast<const Source*>(user);
  return source.at == source.bytes.size() ? 1 : 0;
}

constexpr stbi_io_callbacks kCallbacks = {read_some, skip_some, at_end};

std::uint32_t little_endian(std::span<const std::uint8_t> bytes, std::size_t at,
                            std::size_t count) {
  if (at + count > bytes.size()) return 0;
  std::uint32_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | bytes[at + i];
  return value;
}

// stb_image reads four palette entries too few behind OS/2's header.
void check_bmp(std::span<const std::uint8_t> bytes, std::string_view name) {
  constexpr std::size_t kHeaderBytesAt = 14, kBitsAt = 24;
  constexpr std::uint32_t kOs2HeaderBytes = 12;
  if (little_endian(bytes, kHeaderBytesAt, 4) == kOs2HeaderBytes &&
      little_endian(bytes, kBitsAt, 2) < 16)
    throw InputError("{}: a BMP file with the palette of OS/2, which is not read", name);
}

// The third number of the header, behind width and height; nothing where the header is broken,
// which stb_image tells.
std::optional<std::uint64_t> pnm_largest_value(std::span<const std::uint8_t> bytes) {
  std::size_t at = 2;  // behind P5 or P6
  std::uint64_t number = 0;
  for (int numbers = 0; numbers < 3; ++numbers) {
    const auto skip_comment = [&] {
      while (at < bytes.size() && bytes[at] != '\n' && bytes[at] != '\r') ++at;
    };
    while (at < bytes.size() && (std::isspace(bytes[at]) != 0 || bytes[at] == '#'))
      bytes[at] == '#' ? skip_comment() : static_cast<void>(++at);
    const std::size_t begin = at;
    for (number = 0; at < bytes.size() && std::isdigit(bytes[at]) != 0; ++at)
      number = std::min<std::uint64_t>(number * 10 + bytes[at] - '0', 1'000'000);
    if (at == begin) return std::nullopt;
  }
  return number;
}

// stb_image leaves the samples as they are, whatever value is white.
void check_pnm(std::span<const std::uint8_t> bytes, std::string_view name) {
  const auto largest = pnm_largest_value(bytes);
  if (largest && *largest != 255)
    throw InputError("{}: a PPM file with a largest value of {}, expected 255", name, *largest);
}

// A byte of the file gives at most so many pixels; 0: any number.
std::uint64_t max_pixels_per_byte(PictureFormat format) {
  switch (format) {
    case PictureFormat::bmp:
      return 8;
    case PictureFormat::tga:
    case PictureFormat::psd:
      return 128;  // run lengths
    case PictureFormat::pnm:
      return 1;
    default:
      return 0;  // the frame of a GIF may be smaller than its canvas
  }
}

std::string reason() {
  const char* text = stbi_failure_reason();
  return text == nullptr || *text == '\0' ? "it holds no picture" : text;
}

[[noreturn]] void refuse(const Source& source, const PictureFormatFacts& facts,
                         std::string_view name) {
  if (reason() == "Out of memory") throw RunError("{}: out of memory while reading it", name);
  if (source.ended_early) throw InputError("{}: broken {}: the file ends early", name, facts.name);
  throw InputError("{}: {} cannot be read: {}", name, facts.name, reason());
}

void check_pixels(std::int64_t width, std::int64_t height, PictureFormat format,
                  std::size_t file_bytes, std::string_view name) {
  check_image_size(width, height, name);
  const std::int64_t pixels = width * height;
  const PictureFormatFacts& facts = facts_of(format);
  if (pixels > kMaxStbPixels) {
    throw InputError("{}: {}x{} pixels, at most {} of a {} file are read", name, width, height,
                     kMaxStbPixels, facts.name);
  }
  const std::uint64_t most = max_pixels_per_byte(format);
  if (most > 0 && static_cast<std::uint64_t>(pixels) / most > file_bytes) {
    throw InputError("{}: broken {}: {} bytes cannot hold {}x{} pixels", name, facts.name,
                     file_bytes, width, height);
  }
}

// out: [height, width, 3]; in: `channels` are gray, gray + alpha, RGB or RGBA
void convert(const std::uint8_t* in, std::size_t pixels, int channels, std::uint8_t* out) {
  const auto stride = static_cast<std::size_t>(channels);
  const bool alpha = channels == 2 || channels == 4, gray = channels < 3;
  for (std::size_t i = 0; i < pixels; ++i, in += stride, out += 3) {
    for (std::size_t c = 0; c < 3; ++c) {
      const std::uint8_t level = in[gray ? 0 : c];
      out[c] = alpha ? over_white(level, in[stride - 1]) : level;
    }
  }
}

}  // namespace

ImageSize stb_size(PictureFormat format, std::span<const std::uint8_t> bytes,
                   std::string_view name) {
  if (format == PictureFormat::bmp) check_bmp(bytes, name);
  if (format == PictureFormat::pnm) check_pnm(bytes, name);
  Source source{bytes};
  int width = 0, height = 0, channels = 0;
  if (stbi_info_from_callbacks(&kCallbacks, &source, &width, &height, &channels) == 0) {
    // It has tried all formats; loading, which fails for the same header, tells the reason.
    source = {bytes};
    stbi_image_free(stbi_load_from_callbacks(&kCallbacks, &source, &width, &height, &channels, 0));
    refuse(source, facts_of(format), name);
  }
  // stb_image reads the first frame, whatever follows it.
  if (format == PictureFormat::gif && !read_gif_blocks(bytes).whole)
    throw InputError("{}: broken GIF: damaged, or its end is missing", name);
  // BMP stores rows top-down where the height is negative.
  const std::int64_t rows = std::abs(static_cast<std::int64_t>(height));
  check_pixels(width, rows, format, bytes.size(), name);
  return {rows, width};
}

Image decode_stb(PictureFormat format, std::span<const std::uint8_t> bytes, std::string_view name) {
  stb_size(format, bytes, name);
  Source source{bytes};
  int width = 0, height = 0, channels = 0;
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_callbacks(&kCallbacks, &source, &width, &height, &channels, 0),
      stbi_image_free);
  if (pixels == nullptr || source.ended_early) refuse(source, facts_of(format), name);
  check_pixels(width, height, format, bytes.size(), name);
  Image image{at::empty({height, width, 3}, at::kByte), {}, 1};
  convert(pixels.get(), static_cast<std::size_t>(image.rgb.numel() / 3), channels,
          image.rgb.data_ptr<std::uint8_t>());
  return image;
}

}  // namespace diptych

#include <algorithm>
#include <array>
#include <bit>

#include "lib/base/error.h"
#include "lib/media/bmp.h"

namespace diptych {
namespace {

constexpr std::size_t kFileHeaderBytes = 14, kCoreHeaderBytes = 12;        // OS/2 1.x: 16-bit sides
constexpr std::uint32_t kPlain = 0, kRle8 = 1, kRle4 = 2, kBitfields = 3;  // compression

// Little-endian numbers at checked places.
struct File {
  std::span<const std::uint8_t> bytes;
  std::string_view name;

  std::span<const std::uint8_t> part(std::uint64_t at, std::uint64_t count) const {
    if (at > bytes.size() || count > bytes.size() - at) {
      throw InputError("{}: broken BMP: the file ends early", name);
    }
    return bytes.subspan(at, count);
  }
  std::uint32_t u16(std::uint64_t at) const {
    const auto b = part(at, 2);
    return b[0] | std::uint32_t{b[1]} << 8;
  }
  std::uint32_t u32(std::uint64_t at) const { return u16(at) | u16(at + 2) << 16; }
};

using Color = std::array<std::uint8_t, 3>;  // red, green, blue

struct Header {
  std::int64_t width = 0, height = 0;
  bool top_down = false;
  std::uint32_t bits = 0;  // per pixel
  std::uint32_t compression = kPlain;
  std::array<std::uint32_t, 4> masks{};  // red, green, blue, alpha; 0: none
  std::vector<Color> palette;
  std::uint64_t pixels_at = 0;

  std::uint64_t row_bytes() const { return (static_cast<std::uint64_t>(width) * bits + 7) / 8; }
  std::uint64_t stride() const { return (row_bytes() + 3) / 4 * 4; }
};

void check_kind(const Header& h, const File& file) {
  constexpr std::pair<std::uint32_t, std::uint32_t> kKinds[] = {
      {1, kPlain}, {4, kPlain}, {8, kPlain},      {16, kPlain},     {24, kPlain},    {32, kPlain},
      {8, kRle8},  {4, kRle4},  {16, kBitfields}, {24, kBitfields}, {32, kBitfields}};
  const std::pair kind(h.bits, h.compression);
  if (std::find(std::begin(kKinds), std::end(kKinds), kind) == std::end(kKinds)) {
    throw InputError("{}: a BMP file of {} bits and compression {}, which is not read", file.name,
                     h.bits, h.compression);
  }
}

// As Pillow: 32-bit pixels with four empty masks are blue, green, red, alpha; fewer bits have no
// alpha.
void read_masks(Header& h, const File& file, std::uint64_t header_bytes) {
  constexpr std::uint64_t kMasksAt = kFileHeaderBytes + 40;
  constexpr std::array<std::uint32_t, 4> kRgb555 = {0x7C00, 0x3E0, 0x1F, 0},
                                         kRgb888 = {0xFF0000, 0xFF00, 0xFF, 0},
                                         kRgba8888 = {0xFF0000, 0xFF00, 0xFF, 0xFF000000};
  if (h.compression != kBitfields) {
    h.masks = h.bits == 16 ? kRgb555 : kRgb888;
    return;
  }
  const std::size_t count = h.bits == 32 && header_bytes >= 56 ? 4 : 3;
  for (std::size_t i = 0; i < count; ++i) h.masks[i] = file.u32(kMasksAt + i * 4);
  if (h.bits == 32 && h.masks == std::array<std::uint32_t, 4>{}) h.masks = kRgba8888;
}

std::vector<Color> read_palette(const File& file, std::uint64_t at, std::uint64_t colors,
                                std::uint64_t entry_bytes) {
  const auto stored = file.part(at, colors * entry_bytes);
  std::vector<Color> palette;
  for (std::size_t i = 0; i < colors; ++i) {
    const auto entry = stored.subspan(i * entry_bytes, 3);
    palette.push_back({entry[2], entry[1], entry[0]});
  }
  return palette;
}

std::uint64_t read_sides(Header& h, const File& file) {  // returns the size of the header
  constexpr std::array kSizes = {40u, 52u, 56u, 64u, 108u, 124u};
  const std::uint64_t at = kFileHeaderBytes, header_bytes = file.u32(at);
  if (header_bytes == kCoreHeaderBytes) {
    h.width = file.u16(at + 4);
    h.height = file.u16(at + 6);
    h.bits = file.u16(at + 10);
    return header_bytes;
  }
  if (std::find(kSizes.begin(), kSizes.end(), header_bytes) == kSizes.end()) {
    throw InputError(
        "{}: broken BMP: a header of {} bytes, expected 12, 40, 52, 56, 64, 108 or 124", file.name,
        header_bytes);
  }
  h.width = static_cast<std::int32_t>(file.u32(at + 4));
  h.height = static_cast<std::int32_t>(file.u32(at + 8));
  h.top_down = h.height < 0;
  h.height = std::abs(h.height);
  h.bits = file.u16(at + 14);
  h.compression = file.u32(at + 16);
  return header_bytes;
}

Header read_header(const File& file) {
  Header h;
  const std::uint64_t header_bytes = read_sides(h, file);
  check_image_size(h.width, h.height, file.name);
  check_kind(h, file);
  const std::uint64_t header_end = kFileHeaderBytes + header_bytes;
  h.pixels_at = file.u32(10);
  if (h.bits > 8) {
    read_masks(h, file, header_bytes);
    const bool masks_behind = h.compression == kBitfields && header_bytes == 40;
    if (h.pixels_at == 0) h.pixels_at = header_end + (masks_behind ? 12 : 0);
    return h;
  }
  const bool core = header_bytes == kCoreHeaderBytes;
  const std::uint64_t entry_bytes = core ? 3 : 4, most = std::uint64_t{1} << h.bits;
  const std::uint64_t colors = core ? 0 : file.u32(kFileHeaderBytes + 32);
  h.palette =
      read_palette(file, header_end, colors == 0 ? most : std::min(colors, most), entry_bytes);
  // Some writers name no place, or that of the palette.
  if (h.pixels_at == 0 || h.pixels_at == header_end) {
    h.pixels_at = header_end + entry_bytes * (colors == 0 ? most : colors);
  }
  return h;
}

// One channel of a masked pixel: its value in 8 bits.
class Channel {
 public:
  Channel(std::uint32_t mask, const File& file) : mask_(mask) {
    constexpr std::uint32_t kMostBits = 16;
    if (mask == 0) return;  // always 0
    shift_ = static_cast<std::uint32_t>(std::countr_zero(mask));
    const std::uint32_t largest = mask >> shift_;
    if ((largest & (largest + 1)) != 0 || std::popcount(mask) > static_cast<int>(kMostBits)) {
      throw InputError(
          "{}: a BMP file with the channel mask {:#010x}, expected 1 to {} adjacent bits",
          file.name, mask, kMostBits);
    }
    for (std::uint32_t value = 1; value <= largest; ++value) {
      levels_.push_back(static_cast<std::uint8_t>(value * 255 / largest));
    }
  }
  std::uint8_t operator()(std::uint32_t pixel) const { return levels_[(pixel & mask_) >> shift_]; }

 private:
  std::uint32_t mask_, shift_ = 0;
  std::vector<std::uint8_t> levels_ = {0};
};

// Rows in file order: the bottom row first, unless top_down.
std::span<const std::uint8_t> stored_row(const Header& h, const File& file, std::int64_t row) {
  return file.part(h.pixels_at + static_cast<std::uint64_t>(row) * h.stride(), h.row_bytes());
}

std::uint8_t* row_of(const Header& h, std::uint8_t* out, std::int64_t row) {
  return out + (h.top_down ? row : h.height - 1 - row) * h.width * 3;
}

void decode_masked(const Header& h, const File& file, std::uint8_t* out) {
  for (std::size_t c = 0; c < 3; ++c) {
    if (h.masks[c] == 0)
      throw InputError("{}: a BMP file without a mask for {}", file.name,
                       std::array{"red", "green", "blue"}[c]);
  }
  const std::array colors = {Channel(h.masks[0], file), Channel(h.masks[1], file),
                             Channel(h.masks[2], file)};
  const bool has_alpha = h.masks[3] != 0;
  const Channel alpha(h.masks[3], file);
  const std::size_t pixel_bytes = h.bits / 8;
  for (std::int64_t row = 0; row < h.height; ++row) {
    const auto in = stored_row(h, file, row);
    std::uint8_t* to = row_of(h, out, row);
    for (std::size_t at = 0; at < in.size(); at += pixel_bytes) {
      std::uint32_t pixel = 0;
      for (std::size_t i = 0; i < pixel_bytes; ++i) pixel |= std::uint32_t{in[at + i]} << (8 * i);
      for (const Channel& color : colors) {
        *to++ = has_alpha ? over_white(color(pixel), alpha(pixel)) : color(pixel);
      }
    }
  }
}

const Color& color_of(const Header& h, const File& file, std::size_t index) {
  if (index >= h.palette.size()) {
    throw InputError("{}: broken BMP: a pixel of colour {}, the palette has {}", file.name, index,
                     h.palette.size());
  }
  return h.palette[index];
}

void decode_indexed(const Header& h, const File& file, std::uint8_t* out) {
  const std::uint32_t per_byte = 8 / h.bits, largest = (1u << h.bits) - 1;
  for (std::int64_t row = 0; row < h.height; ++row) {
    const auto in = stored_row(h, file, row);
    std::uint8_t* to = row_of(h, out, row);
    for (std::uint32_t x = 0; x < h.width; ++x) {
      const std::uint32_t shift = 8 - h.bits * (x % per_byte + 1);  // the leftmost pixel is highest
      to = std::ranges::copy(color_of(h, file, in[x / per_byte] >> shift & largest), to).out;
    }
  }
}

// Microsoft's "Bitmap Compression": pairs of bytes, a count and the colour or two it repeats; the
// count 0 introduces the end of a row or of the picture, a jump, or pixels one by one.
class RunLengthDecoder {
 public:
  RunLengthDecoder(const Header& header, const File& file, std::uint8_t* out)
      : h_(header), file_(file), out_(out), at_(header.pixels_at) {}

  void decode() {
    fill_with_first_color();
    while (row_ < h_.height && !(row_ == h_.height - 1 && x_ == h_.width)) {
      const std::uint32_t count = next(), value = next();
      if (count > 0) {
        repeat(count, value);
      } else if (value == kEndOfRow) {
        ++row_;
        x_ = 0;
      } else if (value == kEndOfPicture) {
        return;
      } else if (value == kJump) {
        x_ = std::min<std::int64_t>(x_ + next(), h_.width);
        row_ += next();
      } else {
        copy(value);
      }
    }
  }

 private:
  static constexpr std::uint32_t kEndOfRow = 0, kEndOfPicture = 1, kJump = 2;

  std::uint8_t next() { return file_.part(at_++, 1)[0]; }

  void fill_with_first_color() {
    const Color& first = color_of(h_, file_, 0);
    for (std::int64_t i = 0; i < h_.width * h_.height; ++i) std::ranges::copy(first, out_ + i * 3);
  }

  void put(std::uint32_t index) {  // what lies beyond the row is dropped
    if (x_ >= h_.width) return;
    std::ranges::copy(color_of(h_, file_, index), row_of(h_, out_, row_) + x_ * 3);
    ++x_;
  }

  // The colour of pixel i in a byte of one colour, or of two.
  std::uint32_t part(std::uint32_t byte, std::uint32_t i) const {
    if (h_.bits == 8) return byte;
    return i % 2 == 0 ? byte >> 4 : byte & 15;
  }

  void repeat(std::uint32_t count, std::uint32_t value) {
    for (std::uint32_t i = 0; i < count; ++i) put(part(value, i));
  }

  void copy(std::uint32_t count) {
    const std::uint32_t per_byte = 8 / h_.bits, bytes = (count + per_byte - 1) / per_byte;
    const auto values = file_.part(at_, bytes);
    for (std::uint32_t i = 0; i < count; ++i) put(part(values[i / per_byte], i));
    at_ += bytes + bytes % 2;  // padded to an even count
  }

  const Header& h_;
  const File& file_;
  std::uint8_t* out_;
  std::uint64_t at_;
  std::int64_t row_ = 0, x_ = 0;
};

void check_length(const Header& h, const File& file) {  // before the pixels are allocated
  if (h.compression == kRle8 || h.compression == kRle4) return;
  file.part(h.pixels_at, h.stride() * static_cast<std::uint64_t>(h.height - 1) + h.row_bytes());
}

}  // namespace

ImageSize bmp_size(std::span<const std::uint8_t> bytes, std::string_view name) {
  const File file{bytes, name};
  const Header h = read_header(file);
  check_length(h, file);
  return {h.height, h.width};
}

Image decode_bmp(std::span<const std::uint8_t> bytes, std::string_view name) {
  const File file{bytes, name};
  const Header h = read_header(file);
  check_length(h, file);
  Image image{at::empty({h.height, h.width, 3}, at::kByte), {}};
  auto* out = image.rgb.data_ptr<std::uint8_t>();
  if (h.bits > 8) {
    decode_masked(h, file, out);
  } else if (h.compression == kPlain) {
    decode_indexed(h, file, out);
  } else {
    RunLengthDecoder(h, file, out).decode();
  }
  return image;
}

}  // namespace diptych

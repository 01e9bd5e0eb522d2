#include <algorithm>
#include <array>
#include <cctype>
#include <csetjmp>
#include <cstring>

#include <png.h>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/media/exif.h"
#include "lib/media/file_bytes.h"
#include "lib/media/png.h"

namespace diptych {
namespace {

constexpr std::uint64_t kMaxChunkBytes = std::uint64_t{4}
                                         << 20;   // any chunk but IDAT, decompressed
constexpr std::uint32_t kMaxTextChunks = 128;     // libpng drops further ones
constexpr std::uint64_t kMaxDeflateRatio = 1032;  // zlib, "Maximum Compression Factor"

// How the samples of a file become RGB; see png.h.
enum class Layout { rgb, rgba_over_white, gray16_clipped };

// All that libpng's callbacks and the guarded functions below touch. libpng leaves an error by
// longjmp, which skips destructors: so everything that owns memory lives here, outside the
// functions that call setjmp, and those hold plain locals only.
struct Reader {
  std::span<const std::uint8_t> bytes;
  std::size_t position = 0;
  std::string reason;  // libpng's text of the error
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::uint32_t width = 0, height = 0;
  int bit_depth = 0, color_type = 0;
  Layout layout = Layout::rgb;
  bool has_key = false;
  std::array<std::uint8_t, 3> key{};  // tRNS of a gray or RGB file: the colour that is transparent
  std::vector<std::uint8_t> samples;
  std::vector<png_bytep> rows;

  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* reader = static_cast<Reader*>(png_get_error_ptr(png));
  reader->reason = message;
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}  // about profiles and chunks that change no pixel

void on_read(png_structp png, png_bytep out, std::size_t count) {
  auto* reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader->bytes.size() - reader->position) png_error(png, "the file ends early");
  std::memcpy(out, reader->bytes.data() + reader->position, count);
  reader->position += count;
}

// Everything up to the first pixel.
bool read_header(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  png_set_read_fn(r.png, &r, on_read);
  png_set_crc_action(r.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
  png_set_user_limits(r.png, kMaxImageSide, kMaxImageSide);
  png_set_chunk_malloc_max(r.png, kMaxChunkBytes);
  png_set_chunk_cache_max(r.png, kMaxTextChunks);
  png_read_info(r.png, r.info);
  png_get_IHDR(r.png, r.info, &r.width, &r.height, &r.bit_depth, &r.color_type, nullptr, nullptr,
               nullptr);
  return true;
}

// The colour key as Pillow compares it with 8-bit pixels (PIL/PngImagePlugin.py, chunk_tRNS;
// src/libImaging/Convert.c, rgbT2a).
void read_key(Reader& r) {
  png_color_16p key = nullptr;
  r.has_key = png_get_tRNS(r.png, r.info, nullptr, nullptr, &key) != 0 && key != nullptr;
  if (!r.has_key) return;
  if (r.color_type == PNG_COLOR_TYPE_RGB) {
    r.key = {static_cast<std::uint8_t>(key->red), static_cast<std::uint8_t>(key->green),
             static_cast<std::uint8_t>(key->blue)};
  } else {
    const bool one = r.bit_depth == 1 && key->gray != 0;
    r.key.fill(one ? 255 : static_cast<std::uint8_t>(key->gray));
  }
}

// Asks libpng for 8-bit RGB, RGBA or 16-bit gray.
bool choose_layout(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  const bool alpha = (r.color_type & PNG_COLOR_MASK_ALPHA) != 0;
  const bool gray = (r.color_type & PNG_COLOR_MASK_COLOR) == 0;
  if (r.color_type == PNG_COLOR_TYPE_PALETTE) {
    png_set_palette_to_rgb(r.png);  // and its tRNS to alpha
    const bool transparency = png_get_valid(r.png, r.info, PNG_INFO_tRNS) != 0;
    if (transparency) r.layout = Layout::rgba_over_white;
  } else if (gray && !alpha && r.bit_depth == 16) {
    r.layout = Layout::gray16_clipped;
    read_key(r);
  } else {
    png_set_expand_gray_1_2_4_to_8(r.png);
    png_set_strip_16(r.png);
    png_set_gray_to_rgb(r.png);
    const bool drop_alpha = gray && r.bit_depth == 8;
    if (alpha && drop_alpha) png_set_strip_alpha(r.png);
    if (alpha && !drop_alpha) r.layout = Layout::rgba_over_white;
    if (!alpha) read_key(r);
  }
  png_set_interlace_handling(r.png);
  png_read_update_info(r.png, r.info);
  return true;
}

bool read_pixels(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  png_read_image(r.png, r.rows.data());
  png_read_end(r.png, r.info);
  return true;
}

void convert(const Reader& r, std::uint8_t* out) {
  const std::size_t pixels = std::size_t{r.width} * r.height;
  const std::uint8_t* in = r.samples.data();
  switch (r.layout) {
    case Layout::rgb:
      std::copy_n(in, pixels * 3, out);
      break;
    case Layout::rgba_over_white:
      for (std::size_t i = 0; i < pixels; ++i) {
        for (std::size_t c = 0; c < 3; ++c)
          out[i * 3 + c] = over_white(in[i * 4 + c], in[i * 4 + 3]);
      }
      break;
    case Layout::gray16_clipped:
      for (std::size_t i = 0; i < pixels; ++i) {
        const auto value = static_cast<std::uint16_t>(in[i * 2] << 8 | in[i * 2 + 1]);
        std::fill_n(out + i * 3, 3, static_cast<std::uint8_t>(std::min<int>(value, 255)));
      }
      break;
  }
  if (!r.has_key) return;
  for (std::size_t i = 0; i < pixels; ++i) {
    if (std::equal(r.key.begin(), r.key.end(), out + i * 3)) std::fill_n(out + i * 3, 3, 255);
  }
}

std::string latin1_to_utf8(std::string_view text) {
  std::string out;
  for (const char c : text) append_utf8(out, static_cast<unsigned char>(c));
  return out;
}

PictureTexts read_text(const Reader& r) {
  png_textp chunks = nullptr;
  const int count = png_get_text(r.png, r.info, &chunks, nullptr);
  PictureTexts text;
  for (int i = 0; i < count; ++i) {
    const bool international = chunks[i].compression >= PNG_ITXT_COMPRESSION_NONE;
    const std::string_view value(chunks[i].text,
                                 international ? chunks[i].itxt_length : chunks[i].text_length);
    text.emplace_back(latin1_to_utf8(chunks[i].key),
                      international ? replace_invalid_utf8(value) : latin1_to_utf8(value));
  }
  return text;
}

// libpng allocates what a chunk's length field claims and only warns about large claims.
void check_chunk_lengths(std::span<const std::uint8_t> bytes, std::string_view name) {
  constexpr std::size_t kOverhead = 12;  // length, type, CRC
  for (std::size_t at = 8; bytes.size() - at >= kOverhead;) {
    const std::size_t length = png_get_uint_32(bytes.data() + at);
    const std::string_view type(reinterpret_cast<const char*>(bytes.data()) + at + 4, 4);
    if (length > bytes.size() - at - kOverhead) break;
    if (type != "IDAT" && length > kMaxChunkBytes) {
      throw InputError("{}: broken PNG: a chunk at byte {} holds {} bytes, at most {} are read",
                       name, at, length, kMaxChunkBytes);
    }
    if (type == "IEND") return;
    at += length + kOverhead;
  }
  throw InputError("{}: broken PNG: the file ends early", name);
}

// EXIF as ImageMagick and exiv2 wrote it before there was an eXIf chunk: a text of three lines
// ("", "exif", its length) and hexadecimal digits. Pillow reads it, too (PngImagePlugin.py,
// getexif).
std::vector<std::uint8_t> raw_profile(std::string_view text) {
  std::vector<std::uint8_t> bytes;
  for (int line = 0; line < 3; ++line) {
    const std::size_t end = text.find('\n');
    if (end == text.npos) return {};
    text.remove_prefix(end + 1);
  }
  int digits = 0, value = 0;
  for (const char c : text) {
    const std::size_t digit =
        std::string_view("0123456789abcdef")
            .find(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    if (digit == std::string_view::npos) continue;  // the ends of lines
    value = value * 16 + static_cast<int>(digit);
    if (++digits % 2 != 0) continue;
    bytes.push_back(static_cast<std::uint8_t>(value));
    value = 0;
  }
  return bytes;
}

// EXIF's orientation. check_chunk_lengths has seen that every chunk lies inside the file.
int stored_orientation(std::span<const std::uint8_t> bytes, const PictureTexts& texts) {
  constexpr std::size_t kTypeAt = 4, kDataAt = 8, kOverhead = 12;
  for (std::size_t at = 8; bytes.size() - at >= kOverhead;) {
    const std::size_t length = png_get_uint_32(bytes.data() + at);
    if (std::memcmp(bytes.data() + at + kTypeAt, "IEND", 4) == 0) break;
    if (std::memcmp(bytes.data() + at + kTypeAt, "eXIf", 4) == 0) {
      return exif_orientation(bytes.subspan(at + kDataAt, length));
    }
    at += length + kOverhead;
  }
  for (const auto& [key, text] : texts) {
    if (key == "Raw profile type exif") return exif_orientation(raw_profile(text));
  }
  return 1;
}

void require(bool done, const Reader& r, std::string_view name) {
  if (!done) throw InputError("{}: broken PNG: {}", name, r.reason);
}

void check_size(const Reader& r, std::string_view name) {
  check_image_size(r.width, r.height, name);
  // Before rows are allocated: can this file hold that many at all?
  const std::uint64_t row_bytes = png_get_rowbytes(r.png, r.info);
  if (row_bytes * r.height / kMaxDeflateRatio > r.bytes.size()) {
    throw InputError("{}: broken PNG: {} bytes cannot hold {}x{} pixels", name, r.bytes.size(),
                     r.width, r.height);
  }
}

// Reads up to the first pixel and checks what it found.
void open_png(Reader& r, std::span<const std::uint8_t> bytes, std::string_view name) {
  if (bytes.size() < 8 || png_sig_cmp(bytes.data(), 0, 8) != 0) {
    throw InputError("{}: not a PNG file", name);
  }
  check_chunk_lengths(bytes, name);
  r.bytes = bytes;
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
  if (r.png != nullptr) r.info = png_create_info_struct(r.png);
  if (r.info == nullptr) throw RunError("{}: libpng could not start: {}", name, r.reason);
  require(read_header(r), r, name);
  check_size(r, name);
}

}  // namespace

ImageSize png_size(std::span<const std::uint8_t> bytes, std::string_view name) {
  Reader r;
  open_png(r, bytes, name);
  return upright_size(r.height, r.width, stored_orientation(bytes, read_text(r)));
}

Image decode_png(std::span<const std::uint8_t> bytes, std::string_view name) {
  Reader r;
  open_png(r, bytes, name);
  require(choose_layout(r), r, name);
  const std::size_t stride = png_get_rowbytes(r.png, r.info);
  r.samples.resize(stride * r.height);
  for (std::size_t y = 0; y < r.height; ++y) r.rows.push_back(r.samples.data() + y * stride);
  require(read_pixels(r), r, name);

  Image image{at::empty({r.height, r.width, 3}, at::kByte), read_text(r), 1};
  image.orientation = stored_orientation(bytes, image.text);
  convert(r, image.rgb.data_ptr<std::uint8_t>());
  return image;
}

Image read_png(const std::filesystem::path& path) {
  return decode_png(read_file_bytes(path), path.string());
}

}  // namespace diptych

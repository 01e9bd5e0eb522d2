#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <memory>

#include <png.h>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/media/png.h"

namespace diptych {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;
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
  bool has_gray_key = false;
  std::uint16_t gray_key = 0;  // tRNS of a 16-bit gray file: the transparent sample
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
  png_set_user_limits(r.png, kMaxPngSide, kMaxPngSide);
  png_set_chunk_malloc_max(r.png, kMaxChunkBytes);
  png_set_chunk_cache_max(r.png, kMaxTextChunks);
  png_read_info(r.png, r.info);
  png_get_IHDR(r.png, r.info, &r.width, &r.height, &r.bit_depth, &r.color_type, nullptr, nullptr,
               nullptr);
  return true;
}

// Asks libpng for 8-bit RGB, RGBA or 16-bit gray.
bool choose_layout(Reader& r) {
  if (setjmp(png_jmpbuf(r.png))) return false;
  const bool transparency = png_get_valid(r.png, r.info, PNG_INFO_tRNS) != 0;
  if (r.color_type == PNG_COLOR_TYPE_GRAY && r.bit_depth == 16) {
    r.layout = Layout::gray16_clipped;
    png_color_16p key = nullptr;
    r.has_gray_key = transparency && png_get_tRNS(r.png, r.info, nullptr, nullptr, &key) != 0;
    if (r.has_gray_key) r.gray_key = key->gray;
  } else {
    png_set_expand(r.png);  // palette and low-bit gray to 8 bits, tRNS to alpha
    png_set_strip_16(r.png);
    png_set_gray_to_rgb(r.png);
    if (r.color_type == PNG_COLOR_TYPE_GRAY_ALPHA) png_set_strip_alpha(r.png);
    const bool alpha = r.color_type == PNG_COLOR_TYPE_RGB_ALPHA || transparency;
    if (alpha && r.color_type != PNG_COLOR_TYPE_GRAY_ALPHA) r.layout = Layout::rgba_over_white;
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

std::uint8_t over_white(std::uint32_t value, std::uint32_t alpha) {
  const std::uint32_t t = alpha * value + (255 - alpha) * 255 + 128;  // Pillow, Paste.c, BLEND
  return static_cast<std::uint8_t>((t + (t >> 8)) >> 8);
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
        const bool see_through = r.has_gray_key && value == r.gray_key;
        const int gray = see_through ? 255 : std::min<int>(value, 255);
        std::fill_n(out + i * 3, 3, static_cast<std::uint8_t>(gray));
      }
      break;
  }
}

std::string latin1_to_utf8(std::string_view text) {
  std::string out;
  for (const char c : text) append_utf8(out, static_cast<unsigned char>(c));
  return out;
}

PngText read_text(const Reader& r) {
  png_textp chunks = nullptr;
  const int count = png_get_text(r.png, r.info, &chunks, nullptr);
  PngText text;
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

void check_size(const Reader& r, std::string_view name) {
  if (std::int64_t{r.width} * r.height > kMaxPngPixels) {
    throw InputError("{}: {}x{} pixels, at most {} are read", name, r.width, r.height,
                     kMaxPngPixels);
  }
  // Before rows are allocated: can this file hold that many at all?
  const std::uint64_t row_bytes = png_get_rowbytes(r.png, r.info);
  if (row_bytes * r.height / kMaxDeflateRatio > r.bytes.size()) {
    throw InputError("{}: broken PNG: {} bytes cannot hold {}x{} pixels", name, r.bytes.size(),
                     r.width, r.height);
  }
}

}  // namespace

Image decode_png(std::span<const std::uint8_t> bytes, std::string_view name) {
  if (bytes.size() < 8 || png_sig_cmp(bytes.data(), 0, 8) != 0) {
    throw InputError("{}: not a PNG file", name);
  }
  check_chunk_lengths(bytes, name);
  Reader r;
  r.bytes = bytes;
  r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning);
  if (r.png != nullptr) r.info = png_create_info_struct(r.png);
  if (r.info == nullptr) throw RunError("{}: libpng could not start: {}", name, r.reason);

  const auto require = [&](bool done) {
    if (!done) throw InputError("{}: broken PNG: {}", name, r.reason);
  };
  require(read_header(r));
  check_size(r, name);
  require(choose_layout(r));
  const std::size_t stride = png_get_rowbytes(r.png, r.info);
  r.samples.resize(stride * r.height);
  for (std::size_t y = 0; y < r.height; ++y) r.rows.push_back(r.samples.data() + y * stride);
  require(read_pixels(r));

  Image image{at::empty({r.height, r.width, 3}, at::kByte), read_text(r)};  // [height, width, 3]
  convert(r, image.rgb.data_ptr<std::uint8_t>());
  return image;
}

Image read_png(const std::filesystem::path& path) {
  std::error_code failure;
  const auto size = std::filesystem::file_size(path, failure);
  if (failure) throw InputError("{}: cannot be read: {}", path.string(), failure.message());
  if (size > kMaxFileBytes) {
    throw InputError("{}: {} bytes, at most {} are read", path.string(), size, kMaxFileBytes);
  }
  std::vector<std::uint8_t> bytes(size);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (file == nullptr) {
    throw InputError("{}: cannot be read: {}", path.string(), std::strerror(errno));
  }
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
    throw InputError("{}: cannot be read to its end", path.string());
  }
  return decode_png(bytes, path.string());
}

}  // namespace diptych

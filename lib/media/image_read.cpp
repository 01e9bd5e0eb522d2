#include "lib/media/image_read.h"

#include <array>

#include "lib/base/error.h"
#include "lib/media/bmp.h"
#include "lib/media/exif.h"
#include "lib/media/file_bytes.h"
#include "lib/media/jpeg.h"
#include "lib/media/png.h"

namespace diptych {
namespace {

using namespace std::string_view_literals;

std::string_view expected_formats() {
  return jpeg_supported() ? "PNG, JPEG or BMP" : "PNG or BMP (this build is without JPEG)";
}

// What a file begins with, a few bytes in. Only so far as to tell a user what was found.
struct Magic {
  std::size_t at;
  std::string_view bytes;
  std::string_view what;
};

constexpr std::array kOtherFormats = {
    Magic{0, "GIF8"sv, "a GIF file"},
    Magic{8, "WEBP"sv, "a WebP file"},
    Magic{0, "II*\0"sv, "a TIFF file"},
    Magic{0, "MM\0*"sv, "a TIFF file"},
    Magic{4, "ftypheic"sv, "a HEIC file"},
    Magic{4, "ftypheix"sv, "a HEIC file"},
    Magic{4, "ftypmif1"sv, "a HEIF file"},
    Magic{4, "ftypmsf1"sv, "a HEIF file"},
    Magic{4, "ftypavif"sv, "an AVIF file"},
    Magic{4, "ftyp"sv, "a video"},
    Magic{0, "\0\0\0\x0CjP  "sv, "a JPEG 2000 file"},
    Magic{0, "\0\0\0\x0CJXL "sv, "a JPEG XL file"},
    Magic{0, "\xFF\x0A"sv, "a JPEG XL file"},
    Magic{0, "8BPS"sv, "a Photoshop file"},
    Magic{0, "%PDF"sv, "a PDF file"},
};

constexpr std::string_view kPngMagic = "\x89PNG\r\n\x1A\n"sv, kJpegMagic = "\xFF\xD8\xFF"sv,
                           kBmpMagic = "BM"sv;

enum class Format { png, jpeg, bmp };

Format format_of(std::span<const std::uint8_t> bytes, std::string_view name) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kPngMagic)) return Format::png;
  if (text.starts_with(kJpegMagic)) return Format::jpeg;
  if (text.starts_with(kBmpMagic)) return Format::bmp;
  if (text.empty()) throw InputError("{}: empty, expected {}", name, expected_formats());
  for (const Magic& magic : kOtherFormats) {
    if (text.size() >= magic.at && text.substr(magic.at).starts_with(magic.bytes)) {
      throw InputError("{}: {}, expected {}", name, magic.what, expected_formats());
    }
  }
  throw InputError("{}: not a picture, expected {}", name, expected_formats());
}

Image decode_stored(std::span<const std::uint8_t> bytes, std::string_view name) {
  switch (format_of(bytes, name)) {
    case Format::png:
      return decode_png(bytes, name);
    case Format::jpeg:
      return decode_jpeg(bytes, name);
    default:
      return decode_bmp(bytes, name);
  }
}

std::vector<std::uint8_t> read_picture_file(const std::filesystem::path& path) {
  std::error_code ignored;  // what cannot be looked at cannot be read either
  if (std::filesystem::is_directory(path, ignored)) {
    throw InputError("{}: a folder, expected {}", path.string(), expected_formats());
  }
  return read_file_bytes(path);
}

}  // namespace

ImageSize read_image_size(const std::filesystem::path& path) {
  const std::vector<std::uint8_t> bytes = read_picture_file(path);
  const std::string name = path.string();
  switch (format_of(bytes, name)) {
    case Format::png:
      return png_size(bytes, name);
    case Format::jpeg:
      return jpeg_size(bytes, name);
    default:
      return bmp_size(bytes, name);
  }
}

Tensor decode_image(std::span<const std::uint8_t> bytes, std::string_view name) {
  const Image image = decode_stored(bytes, name);
  return upright(image.rgb, image.orientation);
}

Tensor read_image(const std::filesystem::path& path) {
  return decode_image(read_picture_file(path), path.string());
}

}  // namespace diptych

#include "lib/media/image_read.h"

#include <array>

#include "lib/base/error.h"
#include "lib/media/exif.h"
#include "lib/media/file_bytes.h"
#include "lib/media/jpeg.h"
#include "lib/media/png.h"
#include "lib/media/stb.h"
#include "lib/media/webp.h"

namespace diptych {
namespace {

using namespace std::string_view_literals;

// What a file begins with, a few bytes in.
struct Magic {
  std::size_t at;
  std::string_view bytes;
  std::string_view what;
};

constexpr std::array kOtherFormats = {
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
    Magic{0, "P1\n"sv, "a PBM file in plain text"},
    Magic{0, "P2\n"sv, "a PGM file in plain text"},
    Magic{0, "P3\n"sv, "a PPM file in plain text"},
    Magic{0, "P4\n"sv, "a PBM file"},
    Magic{0, "P7\n"sv, "a PAM file"},
    Magic{0, "#?RADIANCE"sv, "a Radiance HDR file"},
    Magic{0, "RIFF"sv, "a RIFF file, and no picture"},
    Magic{0, "%PDF"sv, "a PDF file"},
};

// TGA has no other signature, and its first version none.
constexpr std::string_view kTgaEnd = "TRUEVISION-XFILE.\0"sv;

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

PictureFormat format_of(std::span<const std::uint8_t> bytes, std::string_view name) {
  if (const auto format = picture_format(bytes)) {
    if (!facts_of(*format).built_in) refuse_missing_library(*format, name);
    return *format;
  }
  const std::string_view text = as_text(bytes);
  if (text.empty()) throw InputError("{}: empty, expected {}", name, readable_pictures());
  for (const Magic& magic : kOtherFormats) {
    if (text.size() >= magic.at && text.substr(magic.at).starts_with(magic.bytes)) {
      throw InputError("{}: {}, expected {}", name, magic.what, readable_pictures());
    }
  }
  throw InputError("{}: not a picture, expected {}", name, readable_pictures());
}

Image decode_stored(PictureFormat format, std::span<const std::uint8_t> bytes,
                    std::string_view name) {
  switch (format) {
    case PictureFormat::png:
      return decode_png(bytes, name);
    case PictureFormat::jpeg:
      return decode_jpeg(bytes, name);
    case PictureFormat::webp:
      return decode_webp(bytes, name);
    default:
      return decode_stb(format, bytes, name);
  }
}

std::vector<std::uint8_t> read_picture_file(const std::filesystem::path& path) {
  std::error_code ignored;  // what cannot be looked at cannot be read either
  if (std::filesystem::is_directory(path, ignored)) {
    throw InputError("{}: a folder, expected {}", path.string(), readable_pictures());
  }
  return read_file_bytes(path);
}

}  // namespace

std::optional<PictureFormat> picture_format(std::span<const std::uint8_t> bytes) {
  const std::string_view text = as_text(bytes);
  const bool webp = text.starts_with("RIFF"sv) && text.size() >= 12 && text.substr(8, 4) == "WEBP";
  if (text.starts_with("\x89PNG\r\n\x1A\n"sv)) return PictureFormat::png;
  if (text.starts_with("\xFF\xD8\xFF"sv)) return PictureFormat::jpeg;
  if (webp) return PictureFormat::webp;
  if (text.starts_with("BM"sv)) return PictureFormat::bmp;
  if (text.starts_with("GIF87a"sv) || text.starts_with("GIF89a"sv)) return PictureFormat::gif;
  if (text.starts_with("8BPS"sv)) return PictureFormat::psd;
  const bool pnm = text.starts_with("P5"sv) || text.starts_with("P6"sv);
  if (pnm && text.size() > 2 && " \t\r\n#"sv.find(text[2]) != text.npos) return PictureFormat::pnm;
  if (text.ends_with(kTgaEnd)) return PictureFormat::tga;
  return std::nullopt;
}

void refuse_missing_library(PictureFormat format, std::string_view name) {
  const PictureFormatFacts& facts = facts_of(format);
  throw InputError("{}: a {} file, which this build cannot handle (it is without {})", name,
                   facts.name, facts.library);
}

ImageSize read_image_size(const std::filesystem::path& path) {
  const std::vector<std::uint8_t> bytes = read_picture_file(path);
  const std::string name = path.string();
  const PictureFormat format = format_of(bytes, name);
  switch (format) {
    case PictureFormat::png:
      return png_size(bytes, name);
    case PictureFormat::jpeg:
      return jpeg_size(bytes, name);
    case PictureFormat::webp:
      return webp_size(bytes, name);
    default:
      return stb_size(format, bytes, name);
  }
}

ReadPicture decode_picture(std::span<const std::uint8_t> bytes, std::string_view name) {
  const PictureFormat format = format_of(bytes, name);
  Image image = decode_stored(format, bytes, name);
  image.rgb = upright(image.rgb, image.orientation);
  image.orientation = 1;
  return {std::move(image), format};
}

ReadPicture read_picture(const std::filesystem::path& path) {
  return decode_picture(read_picture_file(path), path.string());
}

Tensor decode_image(std::span<const std::uint8_t> bytes, std::string_view name) {
  return decode_picture(bytes, name).image.rgb;
}

Tensor read_image(const std::filesystem::path& path) {
  return read_picture(path).image.rgb;
}

}  // namespace diptych

#include "lib/base/picture_formats.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace diptych {
namespace {

constexpr std::array<std::string_view, 1> kPng = {".png"}, kWebp = {".webp"}, kBmp = {".bmp"},
                                          kGif = {".gif"}, kTga = {".tga"}, kPsd = {".psd"};
constexpr std::array<std::string_view, 2> kJpeg = {".jpg", ".jpeg"};
constexpr std::array<std::string_view, 3> kPnm = {".ppm", ".pgm", ".pnm"};

constexpr bool kHaveJpeg = DIPTYCH_HAVE_JPEG, kHaveWebp = DIPTYCH_HAVE_WEBP,
               kHaveStb = DIPTYCH_HAVE_STB;
constexpr std::string_view kExifAndXmp = "EXIF and XMP";

// The most pixels of a side are the libraries' own: PNG_USER_WIDTH_MAX as lib/media sets it,
// JPEG_MAX_DIMENSION, WEBP_MAX_DIMENSION.
constexpr std::array kFormats = {
    PictureFormatFacts{PictureFormat::png, "PNG", kPng, "libpng", true, 65'536, false,
                       "text chunks"},
    PictureFormatFacts{PictureFormat::jpeg, "JPEG", kJpeg, "libjpeg", kHaveJpeg, 65'500, true,
                       kExifAndXmp},
    PictureFormatFacts{PictureFormat::webp, "WebP", kWebp, "libwebp", kHaveWebp, 16'383, true,
                       kExifAndXmp},
    PictureFormatFacts{PictureFormat::bmp, "BMP", kBmp, "stb_image", kHaveStb, 0, false, ""},
    PictureFormatFacts{PictureFormat::gif, "GIF", kGif, "stb_image", kHaveStb, 0, false, ""},
    PictureFormatFacts{PictureFormat::tga, "TGA", kTga, "stb_image", kHaveStb, 0, false, ""},
    PictureFormatFacts{PictureFormat::psd, "PSD", kPsd, "stb_image", kHaveStb, 0, false, ""},
    PictureFormatFacts{PictureFormat::pnm, "PPM", kPnm, "stb_image", kHaveStb, 0, false, ""},
};

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::span<const PictureFormatFacts> picture_formats() {
  return kFormats;
}

const PictureFormatFacts& facts_of(PictureFormat format) {
  return kFormats.at(static_cast<std::size_t>(format));
}

std::optional<PictureFormat> format_of_name(const std::filesystem::path& name) {
  const std::string extension = lower_case(name.extension().string());
  for (const PictureFormatFacts& facts : kFormats) {
    if (std::ranges::find(facts.extensions, extension) != facts.extensions.end())
      return facts.format;
  }
  return std::nullopt;
}

std::string readable_pictures() {
  std::vector<std::string_view> names, missing;
  for (const PictureFormatFacts& facts : kFormats) {
    if (facts.built_in) {
      names.push_back(facts.name);
    } else if (std::ranges::find(missing, facts.library) == missing.end()) {
      missing.push_back(facts.library);
    }
  }
  const std::string_view last = names.back();
  names.pop_back();
  std::string text =
      names.empty() ? std::string(last) : fmt::format("{} or {}", fmt::join(names, ", "), last);
  if (!missing.empty())
    text += fmt::format(" (this build is without {})", fmt::join(missing, " and "));
  return text;
}

std::vector<std::string_view> written_extensions() {
  std::vector<std::string_view> extensions;
  for (const PictureFormatFacts& facts : kFormats) {
    if (facts.max_side == 0 || !facts.built_in) continue;
    extensions.insert(extensions.end(), facts.extensions.begin(), facts.extensions.end());
  }
  return extensions;
}

}  // namespace diptych

// The formats of pictures: the one table of what they are called and what this build does with
// them. lib/media has the code of each; nothing here reads or writes a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"

namespace diptych {

// Those that are written come first: kChoiceNames names them.
enum class PictureFormat { png, jpeg, webp, bmp, gif, tga, psd, pnm };

// As --format and records have it. Absent: what the file's name says, PNG where there is none.
template <>
inline constexpr std::array<std::string_view, 3> kChoiceNames<PictureFormat> = {"png", "jpg",
                                                                                "webp"};
template <>
inline constexpr std::array<std::string_view, 4> kChoiceNames<std::optional<PictureFormat>> = {
    kChoiceNames<PictureFormat>[0], kChoiceNames<PictureFormat>[1], kChoiceNames<PictureFormat>[2],
    "auto"};

struct PictureFormatFacts {
  PictureFormat format;
  std::string_view name;                         // "JPEG"
  std::span<const std::string_view> extensions;  // in lower case, the usual one first
  std::string_view library;                      // that reads and writes it
  bool built_in;                                 // this build has that library
  std::int64_t max_side;                         // of a picture that is written; 0 = none is
  bool has_quality;                              // --quality has a meaning
  std::string_view record;                       // where a picture's record stands; "" = nowhere
};

std::span<const PictureFormatFacts> picture_formats();  // in the order of the enum
const PictureFormatFacts& facts_of(PictureFormat format);
// The format that has the extension of this name, in any case; nothing for another one.
std::optional<PictureFormat> format_of_name(const std::filesystem::path& name);

// "PNG, JPEG, WebP, ... or PPM (this build is without libwebp)": what is read.
std::string readable_pictures();
// The extensions under which this build writes pictures; the first is PNG's.
std::vector<std::string_view> written_extensions();

}  // namespace diptych

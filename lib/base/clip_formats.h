// The formats in which clips are written: the one table of what they are called, what they can hold
// and what this build does with them. lib/media/video has the code; nothing here reads or writes a
// file. What is read is not listed: whatever libav knows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"

namespace diptych {

// png: a folder of numbered PNG files, whose name ends in .frames.
enum class ClipFormat { mp4, webm, gif, webp, png };

// As records have it. Absent: what the file's name says.
template <>
inline constexpr std::array<std::string_view, 5> kChoiceNames<ClipFormat> = {"mp4", "webm", "gif",
                                                                             "webp", "png"};
template <>
inline constexpr std::array<std::string_view, 6> kChoiceNames<std::optional<ClipFormat>> = {
    "mp4", "webm", "gif", "webp", "png", "auto"};

// The constant rate factor of a codec: smaller is better and larger.
struct CrfRange {
  int min, max, usual;
};

struct ClipFormatFacts {
  ClipFormat format;
  std::string_view name;        // "MP4"
  std::string_view extension;   // in lower case
  std::string_view library;     // that writes it
  bool built_in;                // this build has that library
  std::int64_t max_side;        // pixels
  double max_rate;              // frames per second
  bool even_sides;              // both sides must be even
  std::optional<CrfRange> crf;  // absent: --crf has no meaning
  bool has_quality;             // --quality has a meaning
  bool keeps_pixels;            // what is read back is what was written, bit for bit
  std::string_view record;      // where a clip's record stands
};

std::span<const ClipFormatFacts> clip_formats();  // in the order of the enum
const ClipFormatFacts& facts_of(ClipFormat format);
// The format that has the extension of this name, in any case; nothing for another one. A folder of
// frames may be named as a shell completes it ("clip.frames/").
std::optional<ClipFormat> clip_format_of_name(const std::filesystem::path& name);
// The extensions under which this build writes clips.
std::vector<std::string_view> written_clip_extensions();

}  // namespace diptych

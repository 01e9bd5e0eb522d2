#include "lib/base/clip_formats.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "lib/base/frame_rate.h"

namespace diptych {
namespace {

constexpr bool kHaveLibav = DIPTYCH_HAVE_LIBAV, kHaveWebp = DIPTYCH_HAVE_WEBP;

// H.264 of crf 0 is without loss in a profile that browsers do not play. The usual values are what
// x264 and libvpx call visually lossless, or nearly so.
constexpr CrfRange kH264{1, 51, 18}, kVp9{0, 63, 24};

// Browsers slow frames of less than 2 hundredths of a second down. The most pixels of a side are
// those of x264 and libvpx, of GIF's 16 bits and of WEBP_MAX_DIMENSION.
constexpr std::array kFormats = {
    ClipFormatFacts{ClipFormat::mp4, "MP4", ".mp4", "libav", kHaveLibav, 16'384, kMaxFrameRate,
                    true, kH264, false, false, "the tag \"comment\""},
    ClipFormatFacts{ClipFormat::webm, "WebM", ".webm", "libav", kHaveLibav, 16'384, kMaxFrameRate,
                    true, kVp9, false, false, "the tag \"comment\""},
    ClipFormatFacts{ClipFormat::gif, "GIF", ".gif", "no library", true, 65'535, 50, false,
                    std::nullopt, false, false, "a comment"},
    ClipFormatFacts{ClipFormat::webp, "WebP", ".webp", "libwebp", kHaveWebp, 16'383, kMaxFrameRate,
                    false, std::nullopt, true, false, "EXIF and XMP"},
    ClipFormatFacts{ClipFormat::png, "PNG frames", ".frames", "libpng", true, 65'536, kMaxFrameRate,
                    false, std::nullopt, false, true, "text chunks of each frame"},
};

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::span<const ClipFormatFacts> clip_formats() {
  return kFormats;
}

const ClipFormatFacts& facts_of(ClipFormat format) {
  return kFormats.at(static_cast<std::size_t>(format));
}

std::optional<ClipFormat> clip_format_of_name(const std::filesystem::path& name) {
  const bool is_folder = !name.has_filename();
  const auto named = is_folder ? name.parent_path() : name;
  const std::string extension = lower_case(named.extension().string());
  const auto found = std::ranges::find(kFormats, extension, &ClipFormatFacts::extension);
  if (found == kFormats.end() || (is_folder && found->format != ClipFormat::png))
    return std::nullopt;
  return found->format;
}

std::vector<std::string_view> written_clip_extensions() {
  std::vector<std::string_view> extensions;
  for (const ClipFormatFacts& facts : kFormats) {
    if (facts.built_in) extensions.push_back(facts.extension);
  }
  return extensions;
}

}  // namespace diptych

// The formats of results: what --format calls them, and what the name of a file says.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/base/choices.h"
#include "lib/base/clip_formats.h"
#include "lib/base/picture_formats.h"
#include "lib/config/run_config.h"

namespace diptych {

// Of pictures, of clips, or of both: of a clip, png is a folder of frames. json: of texts, each
// with its record.
enum class ResultFormat { png, jpg, webp, mp4, webm, gif, json };
template <>
inline constexpr std::array<std::string_view, 7> kChoiceNames<ResultFormat> = {
    "png", "jpg", "webp", "mp4", "webm", "gif", "json"};
template <>
inline constexpr std::array<std::string_view, 8> kChoiceNames<std::optional<ResultFormat>> = {
    "png", "jpg", "webp", "mp4", "webm", "gif", "json", "auto"};

// Nothing where pictures, or clips, are not written so.
std::optional<PictureFormat> picture_format(std::optional<ResultFormat> format);
std::optional<ClipFormat> clip_format(std::optional<ResultFormat> format);

// The kinds of results in this format, or under a name like this; none for a name without an
// extension that is known.
std::vector<MediaKind> kinds_of(ResultFormat format);
std::vector<MediaKind> kinds_of_name(const std::filesystem::path& name);

// The extension of texts with their records, and whether a name has it, in any case.
inline constexpr std::string_view kJsonExtension = ".json";
bool is_named_json(const std::filesystem::path& name);

}  // namespace diptych

#include "lib/config/result_formats.h"

#include <strings.h>

namespace diptych {
namespace {

// Only of what is written; other programs' pictures are read, too.
bool is_of_pictures(const std::filesystem::path& name) {
  const auto format = format_of_name(name);
  return format && facts_of(*format).max_side > 0;
}

}  // namespace

std::optional<PictureFormat> picture_format(std::optional<ResultFormat> format) {
  return format ? parse_choice<PictureFormat>(name_of(*format)) : std::nullopt;
}

std::optional<ClipFormat> clip_format(std::optional<ResultFormat> format) {
  return format ? parse_choice<ClipFormat>(name_of(*format)) : std::nullopt;
}

std::vector<MediaKind> kinds_of(ResultFormat format) {
  std::vector<MediaKind> kinds;
  if (picture_format(format)) kinds.push_back(MediaKind::picture);
  if (clip_format(format)) kinds.push_back(MediaKind::clip);
  if (format == ResultFormat::json) kinds.push_back(MediaKind::text);
  return kinds;
}

std::vector<MediaKind> kinds_of_name(const std::filesystem::path& name) {
  std::vector<MediaKind> kinds;
  if (is_of_pictures(name)) kinds.push_back(MediaKind::picture);
  if (clip_format_of_name(name)) kinds.push_back(MediaKind::clip);
  if (strcasecmp(name.extension().c_str(), ".txt") == 0 || is_named_json(name))
    kinds.push_back(MediaKind::text);
  return kinds;
}

bool is_named_json(const std::filesystem::path& name) {
  return strcasecmp(name.extension().c_str(), kJsonExtension.data()) == 0;
}

}  // namespace diptych

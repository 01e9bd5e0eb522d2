#include "lib/config/run_config.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace diptych {

std::string_view kind_name(MediaKind kind) {
  switch (kind) {
    case MediaKind::picture:
      return "pictures";
    case MediaKind::clip:
      return "videos";
    case MediaKind::text:
      return "texts";
  }
  throw std::logic_error("a kind of media without a name");
}

std::string_view input_name(MediaKind kind) {
  switch (kind) {
    case MediaKind::picture:
      return "image";
    case MediaKind::clip:
      return "video";
    case MediaKind::text:
      return "prompt";
  }
  throw std::logic_error("a kind of media without a flag");
}

std::optional<MediaKind> kind_of_input(std::string_view name) {
  for (const MediaKind kind : {MediaKind::picture, MediaKind::clip, MediaKind::text}) {
    if (input_name(kind) == name) return kind;
  }
  return std::nullopt;
}

InputItem InputItem::of_file(MediaKind kind, std::filesystem::path file) {
  InputItem item;
  (kind == MediaKind::clip ? item.video : item.image) = std::move(file);
  return item;
}

MediaKind InputItem::kind() const {
  if (is_image()) return MediaKind::picture;
  return is_video() ? MediaKind::clip : MediaKind::text;
}

InputCounts RunConfig::input_counts() const {
  return {std::ranges::count_if(inputs, &InputItem::is_image),
          std::ranges::count_if(inputs, &InputItem::is_video)};
}

std::string RunConfig::prompt() const {
  std::string lines;
  for (const InputItem& item : inputs) {
    if (item.is_text() && !item.text.empty()) lines += (lines.empty() ? "" : "\n") + item.text;
  }
  return lines;
}

}  // namespace diptych

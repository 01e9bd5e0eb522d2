#include "lib/config/run_config.h"

#include <stdexcept>

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

}  // namespace diptych

#include "lib/base/frame_names.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "lib/base/error.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "frame_", kExtension = ".png";

}  // namespace

std::string frame_name(std::int64_t frame) {
  return fmt::format("{}{:05}{}", kPrefix, frame, kExtension);
}

bool is_frame_name(const fs::path& name) {
  const std::string text = name.string();
  if (!text.starts_with(kPrefix) || !text.ends_with(kExtension)) return false;
  const auto digits = std::string_view(text).substr(
      kPrefix.size(), text.size() - kPrefix.size() - kExtension.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return digits.size() >= 5 && std::ranges::all_of(digits, is_digit);
}

void require_place_for_frames(const fs::path& path) {
  std::error_code error;
  const fs::file_status found = fs::status(path, error);
  if (!fs::exists(found)) return;
  if (!fs::is_directory(found))
    throw InputError("{}: is a file; expected a folder, or nothing yet", path.string());
  error.clear();
  for (fs::directory_iterator item(path, error), last; !error && item != last;
       item.increment(error)) {
    std::error_code ignored;
    const fs::path name = item->path().filename();
    if (item->is_regular_file(ignored) && is_frame_name(name)) continue;
    throw InputError("{}: holds {}; expected an empty folder, or one with frames alone",
                     path.string(), name.string());
  }
  if (error) throw InputError("{}: cannot be read: {}", path.string(), error.message());
}

}  // namespace diptych

#include "lib/base/folder.h"

#include <algorithm>
#include <cctype>
#include <ranges>

namespace diptych {

namespace fs = std::filesystem;

namespace {

// "https://", "hf://": letters, and then that.
bool is_address(std::string_view text) {
  const std::size_t end = text.find("://");
  const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0; };
  return end != std::string_view::npos && end > 0 &&
         std::ranges::all_of(text.substr(0, end), is_letter);
}

}  // namespace

void require_folder(const fs::path& path, const Subject& subject) {
  if (fs::is_directory(path)) return;
  throw subject.error("{}: {}", path.string(),
                      fs::exists(path) ? "found a file, expected a folder"
                                       : why_missing(path, "not found; expected a folder"));
}

std::string why_missing(const fs::path& path, std::string_view usual) {
  std::error_code error;
  if (is_address(path.native())) return "is an address; expected a path, nothing is downloaded";
  if (fs::is_symlink(fs::symlink_status(path, error)))
    return fmt::format("is a link to {}, which is not there",
                       fs::read_symlink(path, error).string());
  if (path.is_relative() && fs::current_path(error).empty())
    return fmt::format("{}: the current folder has been deleted", usual);
  return std::string(usual);
}

MadeFolder::MadeFolder(const fs::path& folder) {
  std::error_code error;
  fs::path place;
  for (const fs::path& name : folder) {
    place /= name;
    if (fs::create_directory(place, error)) made_.push_back(place);
    if (error && !fs::is_directory(place)) break;
  }
  if (fs::is_directory(folder)) return;
  std::string why = error.message();
  if (fs::is_symlink(fs::symlink_status(place))) why = why_missing(place);
  if (fs::exists(place)) why = place == folder ? "is a file" : place.string() + " is a file";
  remove_made();
  throw InputError("{}: cannot be made: {}", folder.string(), why);
}

MadeFolder::~MadeFolder() {
  remove_made();
}

void MadeFolder::remove_made() const {
  std::error_code ignored;
  for (const fs::path& folder : std::views::reverse(made_)) fs::remove(folder, ignored);
}

}  // namespace diptych

// Folders and files that a flag names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/error.h"

namespace diptych {

// Throws InputError, about `subject`, where there is nothing at `path` or something else, and
// std::filesystem::filesystem_error where that cannot be told.
void require_folder(const std::filesystem::path& path, const Subject& subject);

// What to say of a path where nothing is: `usual`, or why not: a link that leads nowhere, an
// address of the web, a current folder that has been deleted.
std::string why_missing(const std::filesystem::path& path, std::string_view usual = "no such file");

// A folder, made with those above it where they are missing, and removed with them at the end where
// nothing has come into them.
class MadeFolder {
 public:
  explicit MadeFolder(const std::filesystem::path& folder);  // throws InputError
  ~MadeFolder();
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;

 private:
  void remove_made() const;
  std::vector<std::filesystem::path> made_;  // the outermost first
};

}  // namespace diptych

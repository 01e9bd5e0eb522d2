#include "lib/base/folder.h"

#include "lib/base/error.h"

namespace diptych {

void require_folder(const std::filesystem::path& path, std::string_view flag) {
  if (std::filesystem::is_directory(path)) return;
  throw InputError("{}: {}: {}", flag, path.string(),
                   std::filesystem::exists(path) ? "found a file, expected a folder"
                                                 : "not found; expected a folder");
}

}  // namespace diptych

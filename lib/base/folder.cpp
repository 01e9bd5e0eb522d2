#include "lib/base/folder.h"

namespace diptych {

void require_folder(const std::filesystem::path& path, const Subject& subject) {
  if (std::filesystem::is_directory(path)) return;
  throw subject.error("{}: {}", path.string(),
                      std::filesystem::exists(path) ? "found a file, expected a folder"
                                                    : "not found; expected a folder");
}

}  // namespace diptych

#include "lib/base/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "lib/base/error.h"

namespace diptych {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "diptych-XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr)
    throw RunError("{}: no folder can be made there: {}", name,
                   error ? error.message() : std::strerror(errno));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace diptych

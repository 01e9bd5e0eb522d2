// A folder for files that nobody is to keep.
#pragma once

#include <filesystem>

namespace diptych {

class TemporaryFolder {
 public:
  TemporaryFolder();   // below TMPDIR or /tmp; throws RunError where none can be made
  ~TemporaryFolder();  // with all that it holds
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace diptych

// The hash of files that have been read before, so that gigabytes are not hashed in every run.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "lib/tensor/checkpoint_files.h"

namespace diptych {

// One small JSON file per checkpoint in the user's cache folder, named after the files' identity:
// device, inode, size, and the times of the last change of content (mtime) and of the inode
// (ctime), in nanoseconds. A file that is written to, replaced or moved away has another identity.
class KeptHash {
 public:
  using Clock = std::chrono::system_clock;
  // Takes the identity of the open files now. `folder`: nothing keeps and finds nothing.
  KeptHash(const CheckpointFiles& checkpoint, std::optional<std::filesystem::path> folder);
  std::optional<std::string> find() const;
  // Keeps the hash unless a file has changed since the constructor, or was changed less than two
  // seconds before it: a second change could then show the same time. A folder that cannot be
  // written to is no error: the next run hashes again.
  void keep(const std::string& hash) const;

 private:
  const CheckpointFiles& checkpoint_;
  std::optional<std::filesystem::path> folder_;
  std::string identity_;  // of all files, a line each; empty where it cannot be told
  Clock::time_point taken_ = Clock::now();
};

}  // namespace diptych

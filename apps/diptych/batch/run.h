// The running part of `diptych batch`: planned items to files and their manifest.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <vector>

#include "lib/base/folder.h"
#include "lib/base/log.h"
#include "lib/batch/manifest.h"
#include "lib/batch/plan.h"
#include "lib/batch/shards.h"
#include "lib/config/resolve.h"

namespace diptych {

// The folder that a batch writes to, with its manifest; this process's until the end.
class BatchFolder {
 public:
  // Makes the folder where it is missing. Throws InputError where that cannot be, where it holds a
  // run with other shards, or one that is not to be resumed.
  BatchFolder(std::filesystem::path path, const Shard& shard, bool resume);
  ~BatchFolder() = default;  // removes what it made where that is empty
  BatchFolder(const BatchFolder&) = delete;
  BatchFolder& operator=(const BatchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  Manifest& manifest() { return *manifest_; }

 private:
  explicit BatchFolder(std::filesystem::path path);
  std::filesystem::path path_;
  MadeFolder made_;
  std::optional<Manifest> manifest_;
};

struct BatchSettings {
  Shard shard;
  bool resume = false;
  std::size_t batch_size = 1;  // most items of one forward
  Resolved defaults;           // what the session is opened with
  ProgressStyle progress = ProgressStyle::automatic;
};

// Runs the items (those of the shard alone). Returns 0, or 4 where some failed. Throws what ends
// the whole run: InputError for the model, WriteError, Interrupted; what was done until then is
// kept.
int run_batch(const std::vector<PlannedItem>& items, const BatchSettings& settings,
              BatchFolder& folder, Log& log);

}  // namespace diptych

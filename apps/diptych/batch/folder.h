// The folder of a batch, and what an earlier run has left in it.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/base/folder.h"
#include "lib/base/log.h"
#include "lib/batch/manifest.h"
#include "lib/batch/plan.h"
#include "lib/batch/shards.h"
#include "lib/session/result.h"

namespace diptych {

// Makes it, and those above it, where it is missing. Throws InputError.
void make_batch_folder(const std::filesystem::path& folder);

// The folder that a batch writes to, with its manifest; this process's until the end.
class BatchFolder {
 public:
  // Makes the folder where it is missing. `others`: as Manifest takes it. Throws InputError where
  // that cannot be, where it holds a run with other shards, or one that is not to be resumed.
  BatchFolder(std::filesystem::path path, const Shard& shard, bool resume,
              const std::set<std::string>* others = nullptr);
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

// Throws InputError where the manifest of the folder, or a file of an item, would replace the list.
void check_list_is_kept(const std::filesystem::path& list, const std::filesystem::path& folder,
                        const Shard& shard, const std::vector<PlannedItem>& items);

// What computed an item, for its record: device, dtype, quantization, kernels, attention.
std::map<std::string, std::string> made_by(const PlannedItem& item, const Report& report);

// What --resume finds of an earlier run. `own`: whether each item is this process's; the others are
// left alone. All must outlive it.
class EarlierRun {
 public:
  EarlierRun(const std::vector<PlannedItem>& items, const std::vector<bool>& own,
             const Shard& shard, BatchFolder& folder, Log& log)
      : items_(items),
        own_(own),
        shard_(shard),
        folder_(folder.path()),
        manifest_(folder.manifest()),
        log_(log),
        finished_(items.size(), false) {}

  // Whether each item is finished, its files as the manifest says. Removes what was being written.
  // Throws Interrupted.
  const std::vector<bool>& find_finished(Progress& progress);
  // Removes the files of recorded items that are not finished, and says why these run again.
  void forget_unfinished() const;
  // Of finished items that were computed in another way than `report` says of this run, of which it
  // may be silent.
  void warn_of_other_settings(const Report& report) const;

 private:
  void remove_partial() const;
  void forget(const PlannedItem& item, const ManifestRecord& record) const;

  const std::vector<PlannedItem>& items_;
  const std::vector<bool>& own_;
  const Shard& shard_;
  const std::filesystem::path& folder_;
  Manifest& manifest_;
  Log& log_;
  std::vector<bool> finished_;  // per item
  std::set<std::string> kept_;  // files of finished items, and of others' ones
};

}  // namespace diptych

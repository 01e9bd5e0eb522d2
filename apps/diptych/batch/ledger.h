// What has become of the items of a batch: their states, their lines of the manifest, and what the
// log says of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "apps/diptych/batch/folder.h"
#include "apps/diptych/batch/run.h"
#include "lib/base/log.h"
#include "lib/batch/manifest.h"
#include "lib/batch/plan.h"
#include "lib/session/result.h"

namespace diptych {

class BatchLedger {
 public:
  enum class State { pending, skipped, done, failed, of_others };
  using Members = std::span<const std::size_t>;  // indices of items, which run together

  // `own`: per item, whether it is this process's. `folder`: null for a rank that does not write,
  // which keeps states alone. All must outlive this.
  BatchLedger(const std::vector<PlannedItem>& items, const std::vector<bool>& own,
              const BatchSettings& settings, BatchFolder* folder, Progress& progress, Log& log);

  bool writes() const { return folder_ != nullptr; }
  std::filesystem::path path(const std::filesystem::path& name) const {
    return folder_->path() / name;
  }
  Manifest& manifest() const { return folder_->manifest(); }

  bool is_pending(std::size_t i) const { return states_[i] == State::pending; }
  bool has_failed(std::size_t i) const { return states_[i] == State::failed; }
  bool any_pending(Members members) const;
  std::size_t count(State state) const;
  std::int64_t total() const;  // items, without others' ones
  std::int64_t through() const;

  void skip(std::size_t i) { states_[i] = State::skipped; }
  // Where another rank tells why.
  void fail(std::size_t i) { states_[i] = State::failed; }
  // The time until now was another list's.
  void restart();
  // From now on items run, of which the pace is told.
  void begin();

  // The line of an item before it runs.
  static ManifestRecord blank(const PlannedItem& item);
  // `records`: one per member, with what their run gave. Throws RunError for a file that cannot be
  // read again.
  void record_done(Members members, std::vector<ManifestRecord>& records, double seconds,
                   const Report& report);
  // `files`: of it, that are left.
  void record_failure(std::size_t i, std::vector<ManifestRecord::File> files,
                      const std::string& error);
  // Puts the manifest in the order of the list, and says how it went.
  void finish(const Report& report);

 private:
  ManifestRecord::File hashed(const std::string& name) const;
  void log_done(const PlannedItem& item, double seconds, std::size_t left);

  const std::vector<PlannedItem>& items_;
  const BatchSettings& settings_;
  BatchFolder* folder_;
  Progress& progress_;
  Log& log_;
  std::vector<State> states_;   // per item
  double started_, begun_ = 0;  // seconds
  std::size_t run_count_ = 0;   // items that ran to their end
};

}  // namespace diptych

#include "apps/diptych/batch/folder.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/interrupt.h"
#include "lib/base/messages.h"
#include "lib/base/sha256.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOutputDir = "output_dir";

}  // namespace

void make_batch_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw InputError("{}: cannot be made: {}", folder.string(), error.message());
}

BatchFolder::BatchFolder(fs::path path)
    : path_(std::move(path)),
      made_(about(Setting::of(kOutputDir), [&] { return MadeFolder(path_); })) {}

// The destructor removes the folder again if the rest fails.
BatchFolder::BatchFolder(fs::path path, const Shard& shard, bool resume,
                         const std::set<std::string>* others)
    : BatchFolder(std::move(path)) {
  const auto other_shards = manifests_of_other_shards(path_, shard.count);
  if (!other_shards.empty()) {
    throw InputError(
        Setting::of(kOutputDir),
        "{}: holds {}, of a run with other shards; give the same --shard I/N, or another folder",
        path_.string(), other_shards.front());
  }
  manifest_.emplace(path_ / shard.manifest_name(), resume, others);
}

void check_list_is_kept(const fs::path& list, const fs::path& folder, const Shard& shard,
                        const std::vector<PlannedItem>& items) {
  std::error_code ignored;
  const auto is_list = [&](const fs::path& file) {
    return fs::equivalent(folder / file, list, ignored);
  };
  if (is_list(shard.manifest_name())) {
    throw InputError("{}: would be replaced by the manifest of --output-dir {}; expected another",
                     list.string(), folder.string());
  }
  for (const PlannedItem& item : items) {
    if (std::ranges::any_of(item.files, is_list))
      throw InputError("{}: writes the list itself; give it another output", item.where);
  }
}

std::map<std::string, std::string> made_by(const PlannedItem& item, const Report& report) {
  const RunConfig& run = item.options.run;
  const std::string attention =
      run.answers() ? run.read_attention.default_backend : run.paint_attention.default_backend;
  return {{"device", report.device},
          {"dtype", report.dtype},
          {"quantization", std::string(name_of(run.quantization))},
          {"kernels", std::string(name_of(run.kernels))},
          {"attention", attention}};
}

const std::vector<bool>& EarlierRun::find_finished(Progress& progress) {
  if (manifest_.unreadable_lines() > 0) {
    log_.warning("{}: {} could not be read; items that have no other line run again",
                 shard_.manifest_name(), counted(manifest_.unreadable_lines(), "line"));
  }
  remove_partial();
  progress.begin("check", static_cast<std::int64_t>(items_.size()));
  for (std::size_t i = 0; i < items_.size(); ++i) {
    check_interrupted();
    const ManifestRecord* record = manifest_.find(items_[i].id);
    finished_[i] = own_[i] && record != nullptr && items_[i].error.empty() &&
                   is_finished(items_[i], *record, folder_);
    if (finished_[i] || !own_[i]) {
      for (const fs::path& file : items_[i].files) kept_.insert(file.string());
    }
    progress.update(static_cast<std::int64_t>(i) + 1);
  }
  progress.end();
  return finished_;
}

void EarlierRun::remove_partial() const {
  std::vector<fs::path> names = {shard_.manifest_name()};
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const std::vector<fs::path>& files = items_[i].files;
    if (own_[i]) names.insert(names.end(), files.begin(), files.end());
  }
  const std::size_t removed = remove_partial_files(folder_, names);
  if (removed > 0) log_.info("removed {} of a killed run", counted(removed, "unfinished file"));
}

void EarlierRun::forget_unfinished() const {
  std::size_t known = 0;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const ManifestRecord* record = manifest_.find(items_[i].id);
    if (record == nullptr) continue;
    ++known;
    if (own_[i] && !finished_[i]) forget(items_[i], *record);
  }
  if (known < manifest_.records().size()) {
    log_.warning("{} of the manifest {} no longer among the items to run; their files are kept",
                 counted(manifest_.records().size() - known, "item"),
                 manifest_.records().size() - known == 1 ? "is" : "are");
  }
}

void EarlierRun::forget(const PlannedItem& item, const ManifestRecord& record) const {
  if (record.ok && item.error.empty()) {
    log_.info("{}: {}; it runs again", item.id,
              record.request == request_hash(item)
                  ? "a file of it is missing, or not what the manifest says"
                  : "changed since it was made");
  }
  for (const ManifestRecord::File& file : record.files) {
    const fs::path name = file.name;
    const bool climbs = std::ranges::find(name, fs::path("..")) != name.end();
    if (climbs || name.is_absolute() || kept_.contains(file.name)) continue;
    std::error_code ignored;
    if (file_sha256(folder_ / name) == file.sha256) fs::remove_all(folder_ / name, ignored);
  }
}

void EarlierRun::warn_of_other_settings(const Report& report) const {
  std::size_t others = 0;
  std::string first;
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!finished_[i]) continue;
    std::vector<std::string> differences;
    for (const auto& [key, now] : made_by(items_[i], report)) {
      const ManifestRecord& record = *manifest_.find(items_[i].id);
      const auto then = record.made_by.find(key);
      if (!now.empty() && then != record.made_by.end() && then->second != now)
        differences.push_back(fmt::format("{} {}, now {}", key, then->second, now));
    }
    if (differences.empty()) continue;
    if (others++ == 0) first = fmt::format("{}: {}", items_[i].id, fmt::join(differences, "; "));
  }
  if (others == 0) return;
  log_.warning("finished items that were made with other settings are kept ({}): {}", others,
               first);
}

}  // namespace diptych

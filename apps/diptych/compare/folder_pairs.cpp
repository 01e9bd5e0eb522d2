#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "apps/diptych/compare/folders.h"
#include "lib/base/clip_formats.h"
#include "lib/base/error.h"
#include "lib/base/picture_formats.h"
#include "lib/batch/manifest.h"
#include "lib/media/image_read.h"
#include "lib/media/video/clip_read.h"
#include "lib/media/video/clip_start.h"
#include "lib/request/output_names.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

bool is_trace(const fs::path& name) {
  return name.extension() == ".safetensors";
}

bool is_comparable(const fs::path& name) {
  return format_of_name(name) || named_as_video(name) || clip_format_of_name(name) ||
         is_trace(name);
}

// A link that leads nowhere has a name to go by, too.
bool may_be_file(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_regular_file(ignored) || (entry.is_symlink(ignored) && !entry.exists(ignored));
}

using Records = std::optional<std::vector<ManifestRecord>>;

// Of a whole run or of its shards.
Records read_records(const fs::path& folder) {
  Records all = read_manifest(folder / kManifestName);
  if (all) return all;
  for (const std::string& name : manifests_of_other_shards(folder, 1)) {
    const Records part = read_manifest(folder / name);
    if (!all) all.emplace();
    if (part) all->insert(all->end(), part->begin(), part->end());
  }
  return all;
}

class Pairing {
 public:
  Pairing(const fs::path& actual, const fs::path& expected) : folders_{actual, expected} {}

  FolderPairs run() {
    for (std::size_t side : {0, 1}) {
      list_files(side);
      records_[side] = read_records(folders_[side]);
    }
    pairs_.of_manifests = records_[0] && records_[1];
    for (std::size_t side : {0, 1}) {
      if (pairs_.of_manifests) take_manifest(side);
      if (!pairs_.of_manifests && records_[side]) take_texts(side);
    }
    for (std::size_t side : {0, 1}) {
      if (pairs_.of_manifests) take_failures(side);
    }
    return std::move(pairs_);
  }

 private:
  void list_files(std::size_t side) {
    for (const auto& entry : fs::directory_iterator(folders_[side])) {
      const fs::path& file = entry.path();
      std::error_code ignored;
      const bool frames = entry.is_directory(ignored) && is_clip(file);
      if (frames || (may_be_file(entry) && is_comparable(file)))
        pairs_.by_name[file.filename().string()].there[side] = true;
    }
  }

  // The seconds of an item are shared by its results.
  void take_manifest(std::size_t side) {
    for (const ManifestRecord& record : *records_[side]) {
      if (!record.ok) continue;
      const auto results = std::ranges::count_if(
          record.files, [](const auto& file) { return !is_trace(file.name); });
      for (const ManifestRecord::File& file : record.files) {
        check_relative_name(file.name, (folders_[side] / kManifestName).string());
        FolderPair& pair = pairs_.by_name[file.name];
        std::error_code ignored;
        pair.there[side] = fs::exists(folders_[side] / file.name, ignored);
        pair.is_text = !is_comparable(file.name);
        if (!is_trace(file.name))
          pair.seconds[side] = record.seconds / static_cast<double>(results);
      }
    }
  }

  // Of the only manifest there is.
  void take_texts(std::size_t side) {
    for (const ManifestRecord& record : *records_[side]) {
      for (const ManifestRecord::File& file : record.files) {
        if (!record.ok || is_comparable(file.name)) continue;
        check_relative_name(file.name, (folders_[side] / kManifestName).string());
        FolderPair& pair = pairs_.by_name[file.name];
        pair.is_text = true;
        std::error_code ignored;
        for (std::size_t each : {0, 1})
          pair.there[each] = fs::exists(folders_[each] / file.name, ignored);
      }
    }
  }

  // An item that failed on one side has the names of its files from the other; on both, its id.
  void take_failures(std::size_t side) {
    for (const ManifestRecord& record : *records_[side]) {
      if (record.ok) continue;
      const std::string failure =
          fmt::format("failed in {}: {}", folders_[side].string(), record.error);
      bool known = false;
      const auto& others = *records_[1 - side];
      const auto other = std::ranges::find(others, record.id, &ManifestRecord::id);
      for (std::size_t i = 0; other != others.end() && i < other->files.size(); ++i) {
        pairs_.by_name[other->files[i].name].failure = failure;
        known = true;
      }
      if (known) continue;
      std::string& told = pairs_.by_name[record.id].failure;
      told += (told.empty() ? "" : "; ") + failure;
    }
  }

  std::array<fs::path, 2> folders_;
  std::array<Records, 2> records_;
  FolderPairs pairs_;
};

}  // namespace

FolderPairs pair_folders(const fs::path& actual, const fs::path& expected) {
  return Pairing(actual, expected).run();
}

}  // namespace diptych

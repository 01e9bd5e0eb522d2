// From a list to what will be run and written, before any model is loaded.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/batch/list.h"
#include "lib/batch/manifest.h"
#include "lib/config/resolve.h"

namespace diptych {

struct PlannedItem {
  std::size_t number = 0;
  std::string id, where;  // as BatchItem
  bool has_keys = true;   // as BatchItem
  // The settings whose values are the item's own, and the places of these: "width",
  // "list.jsonl:3: size: width".
  std::map<std::string, std::string, std::less<>> own;
  std::string error;  // why it cannot run; options and names are void then
  Options options;    // trace and think_output lie below the output folder
  // Names below the output folder.
  std::vector<std::filesystem::path> results;  // of the pictures, or of the answer
  std::vector<std::filesystem::path> files;    // all: results, plan, trace
};

// Throws InputError about a setting that keeps an item from running.
using ItemCheck = std::function<void(const RunConfig& item)>;

// Every item of the list with its defaults and names; bad values, and what `check` refuses, become
// the item's error. Throws InputError where a flag of the whole batch does nothing for any of them,
// or lets none of them run, where two items would write one file, one would write what another
// reads, or a link leads out of the folder.
std::vector<PlannedItem> plan_batch(const BatchList& list, const Resolved& defaults,
                                    const std::filesystem::path& folder,
                                    const ItemCheck& check = {});

// What an error says of this item: it begins with the item's place and, where the list has keys,
// speaks of these; a value that a flag of the whole batch gave keeps that flag.
std::string item_error(const PlannedItem& item, const Resolved& defaults, const InputError& error);

// The message where the error is about a value that a flag of the whole batch, or one of its weaker
// sources, gave to this item; nothing where it is about the item.
std::optional<std::string> batch_error(const PlannedItem& item, const Resolved& defaults,
                                       const InputError& error);

// What is wrong with the command, and so with every item, is no failure of the items.
class CommonError {
 public:
  // Of an item: batch_error(), or nothing where it can run or fails for another reason. Returns
  // whether all that were seen have the same error.
  bool see(const std::optional<std::string>& error);
  void refuse() const;  // throws InputError where that is so, and one was seen

 private:
  std::optional<std::string> error_;
  bool common_ = true;
};

// Sha-256 (hex) of what the item asks for: its values, the content of its pictures and noise, the
// checkpoint's path, the names of its files. Not how it is computed: device, dtype, kernels.
std::string request_hash(const PlannedItem& item);

// Whether the record is of this very request, and all its files are there as it says.
bool is_finished(const PlannedItem& item, const ManifestRecord& record,
                 const std::filesystem::path& folder);

// Requests that one forward serves, at most.
inline constexpr std::int64_t kMostTogether = 1024;
// Consecutive indices of 0 .. count - 1 that may run together, at most `most` of them, each with
// each.
using MayShare = std::function<bool(std::size_t a, std::size_t b)>;
std::vector<std::vector<std::size_t>> share_groups(std::size_t count, std::size_t most,
                                                   const MayShare& may_share);

// Removes what a killed run left beside these files while it wrote them. Returns how many.
std::size_t remove_partial_files(const std::filesystem::path& folder,
                                 const std::vector<std::filesystem::path>& names);

}  // namespace diptych

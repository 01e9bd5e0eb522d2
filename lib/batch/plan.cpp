#include "lib/batch/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "lib/base/atomic_file.h"
#include "lib/base/error.h"
#include "lib/base/sha256.h"
#include "lib/request/files_read.h"
#include "lib/request/output_names.h"
#include "lib/request/request_checks.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A file beside the results, given by its name below the folder; becomes its path.
void plan_file(fs::path& name, const fs::path& folder, std::string_view extension,
               std::string_view key, PlannedItem& planned) {
  if (name.empty()) return;
  check_relative_name(name, key);
  require_extension(name, extension, key);
  planned.files.push_back(name.lexically_normal());
  name = folder / planned.files.back();
}

void plan_files(const BatchItem& item, const fs::path& folder, PlannedItem& planned) {
  RunConfig& run = planned.options.run;
  const std::string_view extension = extension_of(run.makes);
  const std::string name =
      item.output.empty() ? numbered_name(item.number) + std::string(extension) : item.output;
  const auto names = output_names(name, run.sampling.batch_count, extension, "output");
  for (const fs::path& each : names) planned.results.push_back(each.lexically_normal());
  planned.files = planned.results;
  plan_file(planned.options.think_output, folder, ".txt", "think_output", planned);
  plan_file(run.trace, folder, ".safetensors", "trace", planned);
}

std::map<std::string, std::string, std::less<>> own_places(const BatchItem& item,
                                                           std::span<const Field> fields) {
  std::map<std::string, std::string, std::less<>> own;
  for (const BatchItem::Value& value : item.values) {
    const Field& field = fields[value.field];
    for (const std::string_view flag : long_names(field.flags))
      own.emplace(fmt::format("--{}", flag), value_place(field, value.where));
  }
  const auto add = [&](const char* flag, const char* key) {
    own.emplace(flag, item.has_keys ? fmt::format("{}: {}", item.where, key) : item.where);
  };
  if (item.prompt) add("--prompt", "prompt");
  if (item.images) add("--image", "image");
  if (item.inputs) add("--prompt", "inputs"), add("--image", "inputs");
  return own;
}

// Flags of a request become keys. Not one in front: it is of the whole batch.
std::string with_keys(std::string_view message, std::span<const Field> fields) {
  std::string text;
  for (std::size_t at = 0; at < message.size();) {
    const bool starts = at > 0 && message.substr(at).starts_with("--") &&
                        std::string_view(" (/").find(message[at - 1]) != std::string_view::npos;
    const std::size_t end =
        starts
            ? std::min(message.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at), message.size())
            : at + 1;
    const std::string_view part = message.substr(at, end - at);
    text += starts ? item_key(part, fields).value_or(std::string(part)) : std::string(part);
    at = end;
  }
  return text;
}

// The flags of the whole batch that items ignore.
struct IdleFlags {
  std::size_t items = 0;
  std::map<std::string, std::size_t> counts;  // of items, by origin
  std::map<std::string, std::string> why;     // of the first

  void see(const Resolved& item) {
    ++items;
    std::set<std::string> seen;
    for (const IdleValue& value : idle_values(item)) {
      if (!value.origin.starts_with("--") || !seen.insert(value.origin).second) continue;
      ++counts[value.origin];
      why.emplace(value.origin, value.why);
    }
  }

  void refuse() const {
    for (const auto& [origin, count] : counts) {
      if (count == items)
        throw InputError("{}: does nothing for any item: {}", origin, why.at(origin));
    }
  }
};

// Of an item, also where another of its values is wrong.
std::uint64_t seed_of(const BatchItem& item, const Resolved& defaults) {
  Options options = defaults.options;
  for (const BatchItem::Value& value : item.values) {
    const Field& field = fields_of(options)[value.field];
    if (field.name != "seed") continue;
    try {
      assign(field, options, value.text, value.where);
    } catch (const InputError&) {  // the item fails by it
    }
  }
  return options.run.sampling.seed;
}

PlannedItem plan_item(const BatchItem& item, const Resolved& defaults, const fs::path& folder,
                      IdleFlags& idle, CommonError& common) {
  PlannedItem planned;
  planned.number = item.number;
  planned.id = item.id;
  planned.where = item.where;
  planned.has_keys = item.has_keys;
  planned.own = own_places(item, fields_of(defaults.options));
  std::optional<Resolved> settled;
  try {
    settled = resolve_item(defaults, item);
    idle.see(*settled);
    require_meaning(*settled, item.where);
    planned.options = settled->options;
    if (!planned.options.run.reads_texts())
      throw InputError("--prompt: not given; expected a text (\"\" is one), or inputs");
    require_complete(planned.options);
    plan_files(item, folder, planned);
    common.see(std::nullopt);
  } catch (const InputError& error) {
    const Resolved& places = settled ? *settled : defaults;
    common.see(batch_error(planned, places, error.what()));
    planned.error = item_error(planned, places, error.what());
    planned.options.run.sampling.seed =
        settled ? settled->options.run.sampling.seed : seed_of(item, defaults);
    planned.results.clear();
    planned.files.clear();
  }
  return planned;
}

void refuse_collisions(const std::vector<PlannedItem>& items) {
  std::map<std::string, const PlannedItem*> writers;
  for (const PlannedItem& item : items) {
    for (const fs::path& file : item.files) {
      const auto [first, is_new] = writers.emplace(file.string(), &item);
      if (is_new) continue;
      throw InputError("{}: writes {}, as {} does; give one of them another output", item.where,
                       file.string(), first->second->where);
    }
  }
  for (const auto& [name, item] : writers) {
    for (fs::path folder = fs::path(name).parent_path(); !folder.empty();
         folder = folder.parent_path()) {
      const auto writer = writers.find(folder.string());
      if (writer == writers.end()) continue;
      throw InputError("{}: writes {} into {}, which is a file of {}; give one another output",
                       item->where, name, folder.string(), writer->second->where);
    }
  }
}

using FileNumber = std::pair<dev_t, ino_t>;  // of a file under whatever name

std::optional<FileNumber> file_number(const fs::path& file) {
  struct stat found {};
  if (stat(file.c_str(), &found) != 0) return std::nullopt;
  return FileNumber(found.st_dev, found.st_ino);
}

// What is read is not replaced: neither --resume nor --replay could find it again.
void spare_inputs(const std::vector<PlannedItem>& items, const fs::path& folder) {
  std::map<FileNumber, const PlannedItem*> readers;
  for (const PlannedItem& item : items) {
    for (const FileRead& read : files_read(item.options.run)) {
      if (const auto number = file_number(read.file)) readers.emplace(*number, &item);
    }
  }
  for (const PlannedItem& item : items) {
    for (const fs::path& file : item.files) {
      if (role_of_file(item.options.run, folder / file) == "a file of the model")
        throw InputError("{}: writes {}, which is a file of the model; give it another output",
                         item.where, file.string());
      const auto number = file_number(folder / file);
      const auto reader = number ? readers.find(*number) : readers.end();
      if (reader == readers.end()) continue;
      throw InputError("{}: writes {}, which {} reads; give it another output", item.where,
                       file.string(), reader->second == &item ? "it" : reader->second->where);
    }
  }
}

std::string content_hash(const fs::path& file) {
  return file_sha256(file).value_or("missing");
}

// The file that AtomicFile was writing under this name, "" = none.
std::string file_of_partial(const std::string& name) {
  const std::size_t infix = name.rfind(kPartialInfix);
  if (infix == std::string::npos) return {};
  const std::string_view process = std::string_view(name).substr(infix + kPartialInfix.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (process.empty() || !std::ranges::all_of(process, is_digit)) return {};
  return name.substr(0, infix);
}

}  // namespace

std::vector<PlannedItem> plan_batch(const BatchList& list, const Resolved& defaults,
                                    const fs::path& folder) {
  std::vector<PlannedItem> items;
  items.reserve(list.items.size());
  IdleFlags idle;
  CommonError common;
  for (const BatchItem& item : list.items)
    items.push_back(plan_item(item, defaults, folder, idle, common));
  idle.refuse();
  common.refuse();
  refuse_collisions(items);
  spare_inputs(items, folder);
  return items;
}

std::string at_item(const PlannedItem& item, std::string_view message) {
  const std::string_view list = std::string_view(item.where).substr(0, item.where.rfind(':') + 1);
  return message.starts_with(list) ? std::string(message)
                                   : fmt::format("{}: {}", item.where, message);
}

std::string item_error(const PlannedItem& item, const Resolved& defaults,
                       std::string_view message) {
  const std::string place = item.where + ": ";
  if (message.starts_with(place)) message.remove_prefix(place.size());
  const std::string_view flag = flag_in_front(message);
  const std::string_view rest = message.substr(flag.size());
  const auto fields = fields_of(defaults.options);
  std::string text(message);
  if (const auto own = item.own.find(flag); own != item.own.end()) {
    text = own->second + std::string(rest);
  } else if (const auto field = field_of_flag(flag, fields)) {
    const bool given = defaults.origins[*field] != "default" && !rest.starts_with(": not given");
    const auto key = item.has_keys && !given ? item_key(flag, fields) : std::nullopt;
    text = key ? *key + std::string(rest) : at_value_place(message, defaults);
  }
  if (item.has_keys) text = with_keys(text, fields);
  return at_item(item, text);
}

std::optional<std::string> batch_error(const PlannedItem& item, const Resolved& defaults,
                                       std::string_view message) {
  const std::string place = item.where + ": ";
  if (message.starts_with(place)) message.remove_prefix(place.size());
  const std::string_view flag = flag_in_front(message);
  const auto field = field_of_flag(flag, fields_of(defaults.options));
  if (!field || item.own.contains(flag) || defaults.origins[*field] == "default" ||
      message.substr(flag.size()).starts_with(": not given"))
    return std::nullopt;
  return at_value_place(message, defaults);
}

bool CommonError::see(const std::optional<std::string>& error) {
  common_ = common_ && error && (!error_ || *error_ == *error);
  error_ = error;
  return common_;
}

void CommonError::refuse() const {
  if (common_ && error_) throw InputError(*error_);
}

std::string request_hash(const PlannedItem& item) {
  const RunConfig& run = item.options.run;
  std::error_code ignored;
  Json json = {{"pipeline", run.pipeline},
               {"model", fs::weakly_canonical(run.model, ignored).string()},
               {"load_format", run.load_format}};
  for (const Field& field : fields_of(item.options)) {
    const bool path = std::holds_alternative<PathSlot>(field.slot);
    if (is_of_request(field) && !path)
      json[std::string(field.name)] = value_json(field, item.options);
  }
  json["size_of_input"] = run.sampling.size_of_input;
  json["noise"] = run.noise.empty() ? "" : content_hash(run.noise);
  json["cache_calibration"] =
      run.cache_calibration.empty() ? "" : content_hash(run.cache_calibration);
  for (const InputItem& input : run.inputs) {
    json["inputs"].push_back(input.is_image() ? Json{{"image", content_hash(input.image)}}
                                              : Json{{"text", input.text}});
  }
  for (const fs::path& file : item.files) json["files"].push_back(file.string());
  Sha256 hash;
  hash.update(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  return hash.finish_hex();
}

bool is_finished(const PlannedItem& item, const ManifestRecord& record, const fs::path& folder) {
  if (!record.ok || record.request != request_hash(item)) return false;
  return std::ranges::equal(
      item.files, record.files, [&](const fs::path& name, const ManifestRecord::File& file) {
        return name.string() == file.name && file_sha256(folder / name) == file.sha256;
      });
}

std::vector<std::vector<std::size_t>> share_groups(std::size_t count, std::size_t most,
                                                   const MayShare& may_share) {
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < count; ++i) {
    const bool joins =
        !groups.empty() && groups.back().size() < most &&
        std::ranges::all_of(groups.back(), [&](std::size_t other) { return may_share(other, i); });
    if (!joins) groups.emplace_back();
    groups.back().push_back(i);
  }
  return groups;
}

std::size_t remove_partial_files(const fs::path& folder, const std::vector<fs::path>& names) {
  std::map<fs::path, std::set<std::string>> by_folder;
  for (const fs::path& name : names)
    by_folder[folder / name.parent_path()].insert(name.filename().string());
  std::size_t removed = 0;
  for (const auto& [place, files] : by_folder) {
    std::error_code ignored;
    std::vector<fs::path> partial;
    for (const auto& entry : fs::directory_iterator(place, ignored)) {
      if (files.contains(file_of_partial(entry.path().filename().string())))
        partial.push_back(entry.path());
    }
    for (const fs::path& path : partial) removed += fs::remove(path, ignored) ? 1 : 0;
  }
  return removed;
}

}  // namespace diptych

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
#include "lib/config/family_fields.h"
#include "lib/request/enhanced_prompt.h"
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
  require_extension(name, {extension}, key);
  planned.files.push_back(name.lexically_normal());
  name = folder / planned.files.back();
}

void plan_files(const BatchItem& item, const fs::path& folder, PlannedItem& planned) {
  RunConfig& run = planned.options.run;
  const Extensions extensions = result_extensions(run.makes, planned.options.format);
  const std::string name = item.output.empty()
                               ? numbered_name(item.number) + std::string(extensions.front())
                               : item.output;
  const auto names = output_names(name, run.sampling.batch_count, extensions, "output");
  for (const fs::path& each : names) planned.results.push_back(each.lexically_normal());
  planned.files = planned.results;
  plan_file(planned.options.think_output, folder, ".txt", "think_output", planned);
  plan_file(planned.options.contact_sheet, folder, ".png", "contact_sheet", planned);
  run.trace = trace_file(run.trace, folder);
  plan_file(run.trace, folder, ".safetensors", "trace", planned);
}

std::map<std::string, std::string, std::less<>> own_places(const BatchItem& item,
                                                           std::span<const Field> fields) {
  std::map<std::string, std::string, std::less<>> own;
  for (const GivenValue& value : item.values) {
    const Field& field = fields[value.field];
    own.emplace(field.name, value_place(field, value.where));
  }
  const auto add = [&](std::string_view name, std::string_view key) {
    own.emplace(name, item.has_keys ? fmt::format("{}: {}", item.where, key) : item.where);
  };
  if (item.prompt) add("prompt", "prompt");
  if (!item.output.empty()) add("output", "output");
  for (const auto& [kind, files] : item.files) add(input_name(kind), input_name(kind));
  if (item.inputs) {
    for (const char* each : {"prompt", "image", "video"}) add(each, "inputs");
  }
  return own;
}

// The settings that a message mentions, as the reader of a list with keys knows them.
SettingText in_keys(SettingText text, std::span<const Field> fields) {
  for (auto& part : text) {
    auto* setting = std::get_if<Setting>(&part);
    if (setting == nullptr) continue;
    if (const auto key = item_key(*setting, fields)) *setting = setting->called(*key);
  }
  return text;
}

// How an item's reader sees a setting: at the item's own key, at what gave it to all items, or at
// the key that it could have.
SettingView item_view(const PlannedItem& item, const Resolved& defaults, const Setting& setting) {
  if (const auto own = item.own.find(setting.name); own != item.own.end()) return {own->second};
  const auto fields = fields_of(defaults.options);
  SettingView view = setting_view(setting, defaults);
  const bool of_batch = !view.is_default && setting.given;
  const bool may_have_key = item.has_keys && !of_batch && field_of_setting(setting.name, fields);
  const auto key = may_have_key ? item_key(setting, fields) : std::nullopt;
  view.place = fmt::format("{}: {}", item.where, key.value_or(view.place));
  if (key) view.is_default = false;
  return view;
}

// The flags of the whole batch that items ignore.
struct IdleFlags {
  std::size_t items = 0;
  std::map<std::string, std::size_t> counts;  // of items, by origin
  std::map<std::string, std::string> errors;  // by origin, with the reason of the first

  void see(const Resolved& item) {
    ++items;
    std::set<std::string> seen;
    for (const IdleValue& value : idle_values(item)) {
      if (!value.origin.starts_with("--") || !seen.insert(value.origin).second) continue;
      ++counts[value.origin];
      errors.emplace(value.origin,
                     problem_text({value.setting, {}, value.why},
                                  {fmt::format("{}: does nothing for any item", value.origin)}));
    }
  }

  void refuse() const {
    for (const auto& [origin, count] : counts) {
      if (count == items) throw InputError(errors.at(origin));
    }
  }
};

// Of an item, also where another of its values is wrong.
std::uint64_t seed_of(const BatchItem& item, const Resolved& defaults) {
  Options options = defaults.options;
  for (const GivenValue& value : item.values) {
    const Field& field = fields_of(options)[value.field];
    if (!std::holds_alternative<SeedSlot>(field.slot)) continue;
    try {
      assign(field, options, value.text, value.where);
    } catch (const InputError&) {  // the item fails by it
    }
  }
  return options.run.sampling.seed;
}

PlannedItem blank_plan(const BatchItem& item, std::span<const Field> fields) {
  PlannedItem planned;
  planned.number = item.number;
  planned.id = item.id;
  planned.where = item.where;
  planned.has_keys = item.has_keys;
  planned.own = own_places(item, fields);
  return planned;
}

// The message about a key of the item that it would ignore; "" where there is none.
std::string idle_key_error(const Resolved& settled, const PlannedItem& planned) {
  const auto fields = fields_of(settled.options);
  for (const IdleValue& value : idle_values(settled)) {
    if (!value.origin.starts_with(planned.where)) continue;
    const SettingText why = planned.has_keys ? in_keys(value.why, fields) : value.why;
    return problem_text({value.setting, {}, why}, {value.origin});
  }
  return {};
}

// Throws InputError about the item, or about a setting.
void plan_settled(const BatchItem& item, const fs::path& folder, PlannedItem& planned) {
  if (!planned.options.run.reads_texts()) {
    throw InputError(Setting::absent("prompt"),
                     "not given; expected a text (\"\" is one), or inputs");
  }
  require_complete(planned.options);
  plan_files(item, folder, planned);
}

// An item that cannot run has its seed all the same: the manifest names it.
void fail(PlannedItem& planned, std::string error, std::uint64_t seed) {
  planned.error = std::move(error);
  planned.options.run.sampling.seed = seed;
  planned.results.clear();
  planned.files.clear();
}

PlannedItem plan_item(const BatchItem& item, const Resolved& defaults, const fs::path& folder,
                      const ItemCheck& check, IdleFlags& idle, CommonError& common) {
  PlannedItem planned = blank_plan(item, fields_of(defaults.options));
  Resolved settled;
  try {
    settled = resolve_item(defaults, item);
  } catch (const InputError& error) {  // about a setting, or it names the place of the value
    common.see(batch_error(planned, defaults, error));
    fail(planned, error.problem() ? item_error(planned, defaults, error) : error.what(),
         seed_of(item, defaults));
    return planned;
  }
  idle.see(settled);
  const std::uint64_t seed = settled.options.run.sampling.seed;
  std::string error = idle_key_error(settled, planned);
  std::optional<std::string> of_batch;
  try {
    if (error.empty()) {
      planned.options = settled.options;
      plan_settled(item, folder, planned);
      if (check) check(planned.options.run);
    }
  } catch (const InputError& refused) {
    of_batch = batch_error(planned, settled, refused);
    error = item_error(planned, settled, refused);
  }
  common.see(of_batch);
  if (!error.empty()) fail(planned, std::move(error), seed);
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
void refuse_inputs_as_outputs(const std::vector<PlannedItem>& items, const fs::path& folder) {
  std::map<FileNumber, const PlannedItem*> readers;
  for (const PlannedItem& item : items) {
    for (const FileRead& read : files_read(item.options)) {
      if (const auto number = file_number(read.file)) readers.emplace(*number, &item);
    }
  }
  for (const PlannedItem& item : items) {
    for (const fs::path& file : item.files) {
      if (role_of_file(item.options, folder / file) == kModelFile)
        throw InputError("{}: writes {}, which is {}; give it another output", item.where,
                         file.string(), kModelFile);
      const auto number = file_number(folder / file);
      const auto reader = number ? readers.find(*number) : readers.end();
      if (reader == readers.end()) continue;
      throw InputError("{}: writes {}, which {} reads; give it another output", item.where,
                       file.string(), reader->second == &item ? "it" : reader->second->where);
    }
  }
}

bool lies_below(const fs::path& folder, const fs::path& path) {
  return std::ranges::mismatch(folder, path).in1 == folder.end();
}

// Whether a symbolic link on the way leads out of the folder, which is canonical.
bool leads_out(const fs::path& folder, const fs::path& name) {
  constexpr int kMostLinks = 40;  // as Linux itself follows
  fs::path path = folder;
  for (const fs::path& part : name) {
    path /= part;
    std::error_code none;
    for (int links = 0; links < kMostLinks; ++links) {
      const fs::path target = fs::read_symlink(path, none);
      if (none) break;  // no link, or nothing there
      path = fs::weakly_canonical(path.parent_path() / target);
    }
    if (!lies_below(folder, path)) return true;
  }
  return false;
}

void refuse_links_out(const std::vector<PlannedItem>& items, const fs::path& folder) {
  fs::path root = fs::weakly_canonical(folder).lexically_normal();
  if (!root.has_filename()) root = root.parent_path();  // "new/", which is not there yet
  for (const PlannedItem& item : items) {
    for (const fs::path& file : item.files) {
      if (leads_out(root, file))
        throw InputError(
            "{}: {} is behind a link that leads out of the output folder; give it "
            "another output",
            item.where, file.string());
    }
  }
}

std::string content_hash(const fs::path& file) {
  return file_sha256(file).value_or("missing");
}

// What asks for another prompt than the item's own.
Json enhancement_json(const Options& options) {
  const EnhanceConfig& enhance = options.enhance;
  std::error_code ignored;
  return {{"enhancer", fs::weakly_canonical(enhance.model, ignored).string()},
          {"drafter", fs::weakly_canonical(enhance.drafter, ignored).string()},
          {"instructions", enhance.instructions.empty() ? enhance_instructions(options)
                                                        : content_hash(enhance.instructions)},
          {"max_tokens", enhance.max_tokens}};
}

// The partial_stem() of the file that AtomicFile was writing under this name, "" = none.
std::string stem_of_partial(const std::string& name) {
  const std::size_t infix = name.rfind(kPartialInfix);
  if (infix == std::string::npos) return {};
  const std::string_view process = std::string_view(name).substr(infix + kPartialInfix.size());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (process.empty() || !std::ranges::all_of(process, is_digit)) return {};
  return name.substr(0, infix);
}

}  // namespace

std::vector<PlannedItem> plan_batch(const BatchList& list, const Resolved& defaults,
                                    const fs::path& folder, const ItemCheck& check) {
  std::vector<PlannedItem> items;
  items.reserve(list.items.size());
  IdleFlags idle;
  CommonError common;
  for (const BatchItem& item : list.items)
    items.push_back(plan_item(item, defaults, folder, check, idle, common));
  idle.refuse();
  common.refuse();
  refuse_collisions(items);
  refuse_inputs_as_outputs(items, folder);
  refuse_links_out(items, folder);
  return items;
}

std::string item_error(const PlannedItem& item, const Resolved& defaults, const InputError& error) {
  if (error.problem() == nullptr) return fmt::format("{}: {}", item.where, error.what());
  SettingProblem problem = *error.problem();
  if (item.has_keys) problem.text = in_keys(std::move(problem.text), fields_of(defaults.options));
  return problem_text(problem, item_view(item, defaults, problem.setting));
}

std::optional<std::string> batch_error(const PlannedItem& item, const Resolved& defaults,
                                       const InputError& error) {
  const SettingProblem* problem = error.problem();
  if (problem == nullptr || !problem->setting.given || item.own.contains(problem->setting.name))
    return std::nullopt;
  const auto field = field_of_setting(problem->setting.name, fields_of(defaults.options));
  if (!field || defaults.origins[*field] == kOfDefaults) return std::nullopt;
  return error_text(error, defaults);
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
               {"load_format", name_of(run.load_format)}};
  for (const Field& field : fields_of(item.options)) {
    const bool path = std::holds_alternative<PathSlot>(field.slot);
    if (run.family != nullptr && !run.family->uses(field.name)) continue;
    // Of the encoding, the format stands in the names of the files.
    if (is_of_request(field) && !path && field.scope != Scope::encoding &&
        field.scope != Scope::enhancing)
      json[std::string(field.name)] = value_json(field, item.options);
  }
  if (run.sampling.seed_drawn) json["seed"] = "random";  // any that was drawn will do
  if (!run.answers() && encoding_facts(item.options).has_quality)
    json["quality"] = item.options.quality;
  if (run.makes == MediaKind::clip && item.options.crf) json["crf"] = *item.options.crf;
  json["size_of_input"] = run.sampling.size_of_input;
  json["noise"] = run.noise.empty() ? "" : content_hash(run.noise);
  json["cache_calibration"] =
      run.cache_calibration.empty() ? "" : content_hash(run.cache_calibration);
  for (const FileRead& read : files_read(run)) {
    if (read.role == kMessagesFile) json["messages"] = content_hash(read.file);
  }
  if (enhances(item.options)) json["enhance"] = enhancement_json(item.options);
  const std::optional<EnhancedPrompt>& enhanced = item.options.enhanced;
  for (const InputItem& input : run.inputs) {
    json["inputs"].push_back(
        input.is_text()
            ? Json{{"text", enhanced ? enhanced->given : input.text}}
            : Json{{std::string(input_name(input.kind())), content_hash(input.file())}});
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
    by_folder[folder / name.parent_path()].insert(partial_stem(name.filename().string()));
  std::size_t removed = 0;
  for (const auto& [place, stems] : by_folder) {
    std::error_code ignored;
    std::vector<fs::path> partial;
    for (const auto& entry : fs::directory_iterator(place, ignored)) {
      if (stems.contains(stem_of_partial(entry.path().filename().string())))
        partial.push_back(entry.path());
    }
    for (const fs::path& path : partial) removed += fs::remove_all(path, ignored) > 0 ? 1 : 0;
  }
  return removed;
}

}  // namespace diptych

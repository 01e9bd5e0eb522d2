#include "lib/batch/list.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lib/base/error.h"
#include "lib/base/stdin.h"
#include "lib/base/text_file.h"
#include "lib/base/utf8.h"
#include "lib/batch/json_tree.h"
#include "lib/config/family_fields.h"
#include "lib/config/field_text.h"
#include "lib/config/flag_hints.h"
#include "lib/config/task.h"
#include "lib/config/words.h"
#include "lib/request/output_names.h"

namespace diptych {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxItems = 1'000'000;
constexpr YamlLimits kYamlLimits = {std::size_t{1} << 26, 4'000'000};

// A key of an item, beside those of its own kind (kOwnKeys).
struct Key {
  std::size_t field = 0;
  const FlagGroup* group = nullptr;  // instead of a field
  bool of_request = true;
};
constexpr std::array<std::string_view, 6> kOwnKeys = {"id",    "output", "prompt",
                                                      "image", "video",  "inputs"};
constexpr std::array kFileKinds = {MediaKind::picture, MediaKind::clip};

std::map<std::string, Key, std::less<>> make_keys(std::span<const Field> fields) {
  std::map<std::string, Key, std::less<>> keys;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const Field& field = fields[i];
    const Key key{i, nullptr, is_of_request(field)};
    keys.emplace(field.name, key);
    for (const std::string_view flag : long_names(field.flags))
      keys.emplace(with_underscores(flag), key);
  }
  for (const FlagGroup& group : all_flag_groups()) {
    const std::string name = with_underscores(long_names(group.flags).front());
    keys.emplace(name, Key{0, &group, is_of_request(group.scope)});
  }
  for (const std::string_view own : kOwnKeys) keys.erase(std::string(own));
  return keys;
}

class ItemReader {
 public:
  explicit ItemReader(std::span<const Field> fields) : fields_(fields), keys_(make_keys(fields)) {
    known_.assign(kOwnKeys.begin(), kOwnKeys.end());
    for (const auto& [name, key] : keys_) {
      if (key.of_request) known_.push_back(name);
    }
  }

  BatchItem read(const YamlNode& node, std::size_t number) {
    BatchItem item = blank_item(node.where, number);
    YamlReader(node, "");  // a map, or an error
    refuse_unknown(node, item.where);
    if (const YamlEntry* id = node.find("id")) item.id = read_id(*id, item.where);
    if (const YamlEntry* output = node.find("output")) {
      item.output = scalar_text(output->value, "output");
      check_relative_name(item.output, item.where + ": output");
    }
    try {
      read_inputs(node, item);
      for (const YamlEntry& entry : node.entries) read_value(entry, item);
    } catch (const InputError& error) {
      item.problem = error.what();
    }
    return item;
  }

  static BatchItem blank_item(const YamlWhere& where, std::size_t number) {
    BatchItem item;
    item.number = number;
    item.where = fmt::format("{}:{}", *where.source, where.line);
    item.id = numbered_name(number);
    return item;
  }

 private:
  // Of a key that is another program's name for a flag: ours, or what to do instead.
  std::string hint_of(const std::string& key) const {
    std::string name = key;
    std::ranges::replace(name, '_', '-');
    const auto known = [&](std::string_view flags, std::string_view aliases) {
      const auto all = long_names(aliases);
      if (std::ranges::find(all, name) == all.end()) return std::string();
      return "expected " + with_underscores(long_names(flags).front());
    };
    for (const Field& field : fields_) {
      if (std::string text = known(field.flags, field.aliases); !text.empty()) return text;
    }
    for (const FlagGroup& group : all_flag_groups()) {
      if (std::string text = known(group.flags, group.aliases); !text.empty()) return text;
    }
    return flag_hint("--" + name, {});
  }

  void refuse_unknown(const YamlNode& node, const std::string& where) const {
    for (const YamlEntry& entry : node.entries) {
      const auto key = keys_.find(entry.key);
      if (std::ranges::find(kOwnKeys, entry.key) != kOwnKeys.end()) continue;
      if (key == keys_.end()) {
        const std::string hint = hint_of(entry.key);
        throw InputError("{}: unknown key {}{}", where, in_quotes(entry.key),
                         hint.empty() ? suggestion(entry.key, known_) : ": " + hint);
      }
      if (key->second.of_request) continue;
      const std::string_view flags =
          key->second.group ? key->second.group->flags : fields_[key->second.field].flags;
      throw InputError(
          "{}: {}: holds for the whole batch, which loads one model{}", where, entry.key,
          flags.empty() ? "" : fmt::format("; expected the flag {}", flag_label(flags)));
    }
  }

  static std::string read_id(const YamlEntry& entry, const std::string& where) {
    std::string id = scalar_text(entry.value, "id");
    check_text(id, where + ": id");
    if (id.empty()) throw InputError("{}: id: is empty", where);
    return id;
  }

  static void read_inputs(const YamlNode& node, BatchItem& item) {
    if (const YamlEntry* prompt = node.find("prompt")) {
      item.prompt = written_text(prompt->value, "prompt");
      check_text(*item.prompt, item.where + ": prompt");
    }
    for (const MediaKind kind : kFileKinds) {
      const std::string_view key = input_name(kind);
      if (const YamlEntry* files = node.find(key)) item.files[kind] = read_files(*files, key, item);
    }
    const YamlEntry* inputs = node.find("inputs");
    if (inputs == nullptr) return;
    if (item.prompt || !item.files.empty()) {
      throw InputError("{}: inputs: given together with {}; expected one of them", item.where,
                       item.prompt ? "prompt" : input_name(item.files.begin()->first));
    }
    if (inputs->value.kind != YamlNode::Kind::sequence) {
      yaml_error(inputs->value.where, "inputs",
                 fmt::format("expected a list, found {}", inputs->value.description()));
    }
    if (inputs->value.items.empty())
      throw InputError("{}: inputs: is empty; expected at least one text, image or video",
                       item.where);
    item.inputs.emplace();
    for (const YamlNode& each : inputs->value.items) item.inputs->push_back(read_input(each, item));
  }

  static InputItem read_input(const YamlNode& node, const BatchItem& item) {
    YamlReader reader(node, "inputs");
    const YamlNode* text = reader.optional("text");
    const YamlNode* files[] = {reader.optional("image"), reader.optional("video")};
    reader.finish();
    if ((text != nullptr) + (files[0] != nullptr) + (files[1] != nullptr) != 1)
      throw InputError("{}: inputs: expected one of text, image and video in each", item.where);
    for (std::size_t i = 0; i < kFileKinds.size(); ++i) {
      const MediaKind kind = kFileKinds[i];
      if (files[i] != nullptr)
        return InputItem::of_file(kind, file_path(*files[i], input_name(kind), item.where));
    }
    check_text(written_text(*text, "inputs"), item.where + ": inputs");
    return {text->text, {}};
  }

  static std::vector<fs::path> read_files(const YamlEntry& entry, std::string_view key,
                                          const BatchItem& item) {
    const bool several = entry.value.kind == YamlNode::Kind::sequence;
    if (several && entry.value.items.empty())
      throw InputError("{}: {}: is empty; expected a path, or several", item.where, key);
    std::vector<fs::path> paths;
    for (const YamlNode& path : several ? entry.value.items : std::vector{entry.value})
      paths.push_back(file_path(path, key, item.where));
    return paths;
  }

  static fs::path file_path(const YamlNode& node, std::string_view key, const std::string& where) {
    written_text(node, key);  // a number is more likely a slip than a name
    std::string path = path_text(node, key);
    if (path.empty() || path.find('\0') != std::string::npos)
      throw InputError("{}: {}: is empty or holds a NUL; expected a path", where, key);
    return path;
  }

  void read_value(const YamlEntry& entry, BatchItem& item) const {
    const auto found = keys_.find(entry.key);
    if (found == keys_.end()) return;  // one of kOwnKeys
    const Key& key = found->second;
    const std::string where = fmt::format("{}: {}", item.where, entry.key);
    if (key.group != nullptr) {
      for (const auto& [name, text] : key.group->expand(scalar_text(entry.value, entry.key), where))
        add(item, {field_index(name), text, where});
      return;
    }
    add(item, {key.field, value_of(fields_[key.field], entry), where});
  }

  static std::string value_of(const Field& field, const YamlEntry& entry) {
    // Files that the item writes are named below the output folder, not the list's.
    if (field.scope == Scope::output && std::holds_alternative<PathSlot>(field.slot))
      return scalar_text(entry.value, entry.key);
    if (std::holds_alternative<TextSlot>(field.slot)) return written_text(entry.value, entry.key);
    return field_text(field, entry.value, entry.key);
  }

  static void add(BatchItem& item, GivenValue value) {
    const auto same = std::ranges::find(item.values, value.field, &GivenValue::field);
    if (same != item.values.end())
      throw InputError("{}: given together with {}; expected one of them", value.where,
                       same->where);
    item.values.push_back(std::move(value));
  }

  std::span<const Field> fields_;
  std::map<std::string, Key, std::less<>> keys_;
  std::vector<std::string_view> known_;
};

struct Source {
  std::string name;  // for messages; pictures are looked for beside it
  std::string text;
};

Source read_source(const fs::path& file) {
  const bool piped = file == kStdin;
  std::string text = read_text_file(file_or_stdin(file));
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  return {piped ? "stdin" : file.string(), std::move(text)};
}

// Calls take(line, number) for each line, without its end; true where it skips the line.
template <typename Take>
std::size_t for_each_line(std::string_view text, Take&& take) {
  std::size_t skipped = 0;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!take(line, number)) ++skipped;
  }
  return skipped;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t") == std::string_view::npos;
}

BatchList read_prompts(const Source& from) {
  BatchList list;
  list.prompts_only = true;
  const auto source = std::make_shared<const std::string>(from.name);
  list.skipped_lines = for_each_line(from.text, [&](std::string_view line, int number) {
    if (is_blank(line) || line.starts_with('#')) return false;
    BatchItem item = ItemReader::blank_item({source, number, 0}, list.items.size());
    item.prompt = line;
    item.has_keys = false;
    check_text(*item.prompt, item.where);
    list.items.push_back(std::move(item));
    return true;
  });
  return list;
}

BatchList read_json_lines(const Source& from, std::span<const Field> fields) {
  BatchList list;
  ItemReader reader(fields);
  const auto source = std::make_shared<const std::string>(from.name);
  list.skipped_lines = for_each_line(from.text, [&](std::string_view line, int number) {
    if (is_blank(line)) return false;
    const YamlWhere where{source, number, 0};
    list.items.push_back(reader.read(parse_json_tree(line, where), list.items.size()));
    return true;
  });
  return list;
}

BatchList read_yaml(const fs::path& file, std::span<const Field> fields) {
  const YamlNode root = load_yaml(file, kYamlLimits);
  const YamlNode* items = &root;
  if (root.kind == YamlNode::Kind::map) {
    YamlReader reader(root, "");
    items = &reader.required("items");
    reader.finish();
  }
  if (items->kind != YamlNode::Kind::sequence) {
    throw InputError("{}: expected a list of maps, or a map with items, found {}",
                     items->where.text(), items->description());
  }
  BatchList list;
  ItemReader reader(fields);
  for (const YamlNode& node : items->items)
    list.items.push_back(reader.read(node, list.items.size()));
  return list;
}

void check_ids(const BatchList& list, const fs::path& file) {
  if (list.items.empty()) throw InputError("{}: holds no item", file.string());
  if (list.items.size() > kMaxItems)
    throw InputError("{}: more than {} items", file.string(), kMaxItems);
  std::map<std::string_view, const BatchItem*> ids;
  for (const BatchItem& item : list.items) {
    const auto [first, is_new] = ids.emplace(item.id, &item);
    if (is_new) continue;
    throw InputError("{}: id: {} is also the id of {}", item.where, in_quotes(item.id),
                     first->second->where);
  }
}

// The defaults' inputs with the item's own in their place: pictures first, then clips, then the
// text.
std::vector<InputItem> inputs_over(const std::vector<InputItem>& defaults, const BatchItem& item) {
  if (item.inputs) return *item.inputs;
  if (!item.prompt && item.files.empty()) return defaults;
  std::vector<InputItem> inputs;
  for (const MediaKind kind : kFileKinds) {
    if (const auto own = item.files.find(kind); own != item.files.end()) {
      for (const fs::path& path : own->second) inputs.push_back(InputItem::of_file(kind, path));
    } else {
      std::ranges::copy_if(defaults, std::back_inserter(inputs),
                           [&](const InputItem& each) { return each.kind() == kind; });
    }
  }
  if (item.prompt) {
    inputs.push_back({*item.prompt, {}});
  } else {
    std::ranges::copy_if(defaults, std::back_inserter(inputs), &InputItem::is_text);
  }
  return inputs;
}

}  // namespace

std::optional<std::string> item_key(const Setting& setting, std::span<const Field> fields) {
  static constexpr std::array<std::string_view, 5> kNoFields = {"prompt", "image", "video",
                                                                "output", "size"};
  if (std::ranges::find(kNoFields, setting.name) != kNoFields.end()) return setting.name;
  const auto field = field_of_setting(setting.name, fields);
  if (!field || !is_of_request(fields[*field])) return std::nullopt;
  return with_underscores(std::string_view(setting.label).substr(2));
}

BatchList read_batch_list(const fs::path& file, std::span<const Field> fields) {
  const std::string extension = file.extension().string();
  BatchList list;
  if (file == kStdin) {
    const Source source = read_source(file);
    const std::size_t first = source.text.find_first_not_of(" \t\r\n");
    const bool json = first != std::string::npos && source.text[first] == '{';
    list = json ? read_json_lines(source, fields) : read_prompts(source);
  } else if (extension == ".txt") {
    list = read_prompts(read_source(file));
  } else if (extension == ".jsonl") {
    list = read_json_lines(read_source(file), fields);
  } else if (extension == ".yaml" || extension == ".yml") {
    list = read_yaml(file, fields);
  } else {
    throw InputError("{}: found {}, expected a .txt, .jsonl or .yaml file, or -", file.string(),
                     fs::is_directory(file) ? "a folder"
                     : extension.empty()    ? "no extension"
                                            : extension);
  }
  check_ids(list, file == kStdin ? "stdin" : file);
  return list;
}

Resolved resolve_item(const Resolved& defaults, const BatchItem& item) {
  if (!item.problem.empty()) throw InputError(item.problem);
  Resolved resolved = defaults;
  give(resolved, item.values);
  // The name of an item's output counts for more than a format for all of them.
  const std::size_t format = field_index("format");
  const bool own_format = std::ranges::any_of(
      item.values, [&](const GivenValue& value) { return value.field == format; });
  if (!item.output.empty() && !own_format) {
    resolved.options.format.reset();
    resolved.note(format, std::string(kOfDefaults));
  }
  resolved.options.output = item.output;
  if (!item.output.empty()) resolved.note(field_index("output"), item.where + ": output");
  RunConfig& run = resolved.options.run;
  const auto fields = fields_of(defaults.options);
  const bool own_seed = std::ranges::any_of(item.values, [&](const GivenValue& value) {
    return std::holds_alternative<SeedSlot>(fields[value.field].slot);
  });
  if (run.sampling.seed_drawn && !own_seed) run.sampling.seed = draw_seed();  // each its own
  run.inputs = inputs_over(run.inputs, item);
  settle_task(resolved);
  return resolved;
}

}  // namespace diptych

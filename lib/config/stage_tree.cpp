#include "lib/config/stage_tree.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "lib/base/error.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

// default_sampling_params, and those of one task alone.
bool merges_deeply(std::string_view key) {
  return key.ends_with("_sampling_params");
}

enum class Merge { stage, deep };

void merge_map(YamlNode& base, const YamlNode& over, Merge how) {
  for (const YamlEntry& entry : over.entries) {
    YamlEntry* mine = base.find(entry.key);
    if (mine == nullptr) {
      base.entries.push_back(entry);
      continue;
    }
    const bool deep = how == Merge::deep || merges_deeply(entry.key);
    const bool maps =
        mine->value.kind == YamlNode::Kind::map && entry.value.kind == YamlNode::Kind::map;
    if (deep && maps) {
      merge_map(mine->value, entry.value, Merge::deep);
    } else {
      *mine = entry;
    }
  }
}

void merge_stages(YamlNode& base, const YamlNode& over) {
  require_stage_list(base);
  require_stage_list(over);
  for (const YamlNode& stage : over.items) {
    const std::int64_t id = stage_id_of(stage, "stages");
    const auto same = [&](const YamlNode& mine) { return stage_id_of(mine, "stages") == id; };
    const auto found = std::ranges::find_if(base.items, same);
    if (found == base.items.end()) {
      base.items.push_back(stage);
      base.where = stage.where;  // if there are too many now, this one is
    } else {
      merge_map(*found, stage, Merge::stage);
      found->where = stage.where;
    }
  }
}

void merge_file(YamlNode& base, const YamlNode& over) {
  for (const YamlEntry& entry : over.entries) {
    YamlEntry* mine = base.find(entry.key);
    if (mine == nullptr) {
      base.entries.push_back(entry);
    } else if (entry.key == "stages") {
      merge_stages(mine->value, entry.value);
    } else {
      *mine = entry;
    }
  }
}

// Tells files apart; a pipe has no canonical path.
std::filesystem::path place_of(const std::filesystem::path& file) {
  std::error_code error;
  const auto place = std::filesystem::weakly_canonical(file, error);
  return error ? std::filesystem::absolute(file) : place;
}

YamlNode load_merged(const std::filesystem::path& file, std::vector<std::filesystem::path>& chain) {
  YamlNode tree = load_yaml(file);
  chain.push_back(place_of(file));
  if (tree.kind != YamlNode::Kind::map) {
    yaml_error(tree.where, "", fmt::format("expected a map of keys, found {}", tree.description()));
  }
  const YamlEntry* base = tree.find("base_config");
  if (base == nullptr) return tree;
  if (base->value.kind != YamlNode::Kind::scalar || base->value.text.empty()) {
    yaml_error(
        base->value.where, "base_config",
        fmt::format("expected the path of a stage config, found {}", base->value.description()));
  }
  const std::filesystem::path base_file =
      (file.parent_path() / base->value.text).lexically_normal();
  if (std::ranges::find(chain, place_of(base_file)) != chain.end()) {
    yaml_error(base->value.where, "base_config",
               fmt::format("{} inherits from itself", in_quotes(base->value.text)));
  }
  if (std::error_code ignored; !std::filesystem::exists(base_file, ignored)) {
    yaml_error(base->value.where, "base_config",
               fmt::format("no such file: {}", base_file.string()));
  }
  YamlNode merged = load_merged(base_file, chain);
  std::erase_if(tree.entries, [](const YamlEntry& entry) { return entry.key == "base_config"; });
  merge_file(merged, tree);
  merged.where = tree.where;
  return merged;
}

void place_everywhere(YamlNode& node, const YamlWhere& where) {
  node.where = where;
  for (YamlNode& item : node.items) place_everywhere(item, where);
  for (YamlEntry& entry : node.entries) {
    entry.where = where;
    place_everywhere(entry.value, where);
  }
}

YamlNode& stage_by_id(YamlNode& stages, std::string_view id, std::string_view path) {
  std::vector<std::string> ids;
  if (stages.kind == YamlNode::Kind::sequence) {
    for (YamlNode& stage : stages.items) {
      ids.push_back(fmt::format("{}", stage_id_of(stage, "stages")));
      if (ids.back() == id) return stage;
    }
  }
  const std::vector<std::string_view> known(ids.begin(), ids.end());
  throw InputError("--set: {}: no stage {}{}", path, in_quotes(id), suggestion(id, known));
}

}  // namespace

void require_stage_list(const YamlNode& stages) {
  if (stages.kind != YamlNode::Kind::sequence) {
    yaml_error(stages.where, "stages",
               fmt::format("expected a list of stages, found {}", stages.description()));
  }
  std::set<std::int64_t> ids;
  for (std::size_t i = 0; i < stages.items.size(); ++i) {
    const std::string path = fmt::format("stages.{}", i);
    const std::int64_t id = stage_id_of(stages.items[i], path);
    if (!ids.insert(id).second) {
      yaml_error(stages.items[i].where, path, fmt::format("a second stage with stage_id {}", id));
    }
  }
}

std::int64_t stage_id_of(const YamlNode& stage, std::string_view path) {
  YamlReader reader(stage, std::string(path));
  const YamlNode& node = reader.required("stage_id");
  std::int64_t id = -1;
  if (node.kind == YamlNode::Kind::scalar && node.plain) {
    const char* end = node.text.data() + node.text.size();
    const auto [rest, error] = std::from_chars(node.text.data(), end, id);
    if (error != std::errc{} || rest != end) id = -1;
  }
  if (id < 0) {
    yaml_error(node.where, reader.path_of("stage_id"),
               fmt::format("{} is not a whole number from 0", node.description()));
  }
  return id;
}

YamlNode load_stage_tree(const std::filesystem::path& file) {
  std::vector<std::filesystem::path> chain;
  YamlNode tree = load_merged(file, chain);
  if (const YamlEntry* stages = tree.find("stages")) require_stage_list(stages->value);
  return tree;
}

void apply_override(YamlNode& tree, const std::string& key_and_value) {
  const std::size_t equals = key_and_value.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw InputError("--set: {} is not KEY=VALUE, such as stages.1.default_sampling_params.seed=7",
                     in_quotes(key_and_value));
  }
  const std::string path = key_and_value.substr(0, equals);
  YamlNode value = parse_yaml(key_and_value.substr(equals + 1), "--set " + in_quotes(path));
  const YamlWhere where{std::make_shared<const std::string>("--set"), 0, 0};
  place_everywhere(value, where);

  const YamlEntry* stages = tree.find("stages");
  const YamlNode* stage_list = stages == nullptr ? nullptr : &stages->value;
  YamlNode* node = &tree;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    if (key.empty()) throw InputError("--set: {}: an empty name in the path", path);
    if (node->kind == YamlNode::Kind::sequence && node == stage_list) {
      node = &stage_by_id(*node, key, path);
    } else {
      if (node->kind == YamlNode::Kind::null) node->kind = YamlNode::Kind::map;
      if (node->kind != YamlNode::Kind::map) {
        throw InputError("--set: {}: {} is inside {}, expected a map", path, in_quotes(key),
                         node->description());
      }
      if (node->find(key) == nullptr) {
        node->entries.push_back({key, where, YamlNode{}});
        node->entries.back().value.where = where;
      }
      YamlEntry* entry = node->find(key);
      if (end == path.size()) entry->where = where;
      node = &entry->value;
    }
    begin = end + 1;
  }
  *node = std::move(value);
}

}  // namespace diptych

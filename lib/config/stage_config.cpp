#include "lib/config/stage_config.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "lib/base/error.h"
#include "lib/config/field_text.h"
#include "lib/config/stage_config_known.h"
#include "lib/config/stage_tree.h"
#include "lib/config/words.h"
#include "lib/config/yaml_reader.h"

namespace diptych {
namespace {

// What a map of the file is for.
struct Role {
  bool top = false, reads = false, paints = false;
  bool has(YamlPlace place) const {
    return (place == YamlPlace::top && top) || (place == YamlPlace::reading && reads) ||
           (place == YamlPlace::painting && paints);
  }
};

class StageConfigReader {
 public:
  std::vector<Assignment> read(const YamlNode& tree) {
    YamlReader file(tree, "");
    if (const YamlEntry* old = tree.find("stage_args")) {
      yaml_error(old->where, "stage_args",
                 "the old layout, replaced by `stages`: a list of maps with stage_id and the keys "
                 "themselves (see stage_configs/bagel.yaml)");
    }
    if (const YamlNode* base = file.optional("base_config")) {
      yaml_error(base->where, "base_config", "cannot be set here; write a file that inherits");
    }
    if (const YamlNode* connectors = file.optional("connectors")) read_connectors(*connectors);
    const YamlNode& stages = file.required("stages");
    require_stage_list(stages);
    read_map(file, {.top = true}, YamlMap::file, "");
    read_stages(stages);
    if (devices_) assign_devices(tree);
    return std::move(assignments_);
  }

 private:
  void add(std::size_t field, std::string text, const YamlWhere& where, const std::string& path) {
    const std::string place = where.text();
    // A flag that is given for many keys says which one it is.
    std::string origin = where.in_file() ? place : fmt::format("{} {}", place, path);
    assignments_.push_back({field, std::move(text), std::move(origin),
                            fmt::format("{}: {}", place, path), !where.in_file(), of_edits_});
  }

  // The fields whose key is `prefix` + one name, then the keys that are refused; then nothing may
  // be left in the map.
  void read_map(YamlReader& reader, Role role, YamlMap map, std::string_view prefix) {
    const auto fields = all_fields();
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const Field& field = fields[i];
      if (!field.yaml.starts_with(prefix)) continue;
      const std::string_view key = field.yaml.substr(prefix.size());
      if (key.empty() || key.find('.') != std::string_view::npos) continue;
      if (role.has(field.place)) {
        const YamlNode* node = reader.optional(key);
        const std::string path = reader.path_of(key);
        if (node != nullptr) add(i, field_text(field, *node, path), node->where, path);
      } else if (!role.top && !known_elsewhere(field, role)) {
        if (field.place == YamlPlace::painting)
          reader.refuse(key, "", "this stage reads; the key belongs to the one that paints");
        if (field.place == YamlPlace::reading && of_edits_)
          reader.refuse(key, "", "it stands in default_sampling_params of the stage that reads");
        if (field.place == YamlPlace::reading)
          reader.refuse(key, "", "this stage paints; the key belongs to the one that reads");
      }
    }
    for (const RefusedKey& refused : refused_keys()) {
      if (refused.map == map) reader.refuse(refused.key, refused.off, refused.why);
    }
    reader.finish();
  }

  // Both stages have, say, diffusion_attention_config.
  static bool known_elsewhere(const Field& field, Role role) {
    return std::ranges::any_of(all_fields(), [&](const Field& other) {
      return role.has(other.place) && other.yaml == field.yaml;
    });
  }

  void read_stages(const YamlNode& stages) {
    if (stages.items.empty() || stages.items.size() > 2) {
      yaml_error(stages.where, "stages",
                 fmt::format("{} stages; expected one that does all, or two: one reads, one paints",
                             stages.items.size()));
    }
    for (const YamlNode& stage : stages.items) {
      const std::int64_t id = stage_id_of(stage, "stages");
      const auto count = static_cast<std::int64_t>(stages.items.size());
      if (id >= count) {
        yaml_error(stage.where, "stages",
                   fmt::format("stage_id {} of {} stage{}; they count from 0", id, count,
                               count == 1 ? "" : "s"));
      }
      read_stage(stage, id, {.reads = id == 0, .paints = id == count - 1});
    }
  }

  void read_stage(const YamlNode& stage, std::int64_t id, Role role) {
    YamlReader reader(stage, fmt::format("stages.{}", id));
    reader.required("stage_id");
    if (const YamlNode* devices = reader.optional("devices")) read_devices(*devices, reader);
    if (const YamlNode* inputs = reader.optional("input_connectors"))
      read_inputs(*inputs, reader, id);
    if (const YamlNode* sampling = reader.optional("default_sampling_params")) {
      YamlReader map(*sampling, reader.path_of("default_sampling_params"));
      read_sampling(map, role);
    }
    if (!role.paints) {
      reader.refuse("edit_sampling_params", "",
                    "this stage reads; the key belongs to the one that paints");
    } else if (const YamlNode* edits = reader.optional("edit_sampling_params")) {
      YamlReader map(*edits, reader.path_of("edit_sampling_params"));
      for (const char* side : {"width", "height"})
        map.refuse(side, "", "an edited picture has the size of the last one that it is made from");
      of_edits_ = true;
      read_sampling(map, {.paints = true});
      of_edits_ = false;
    }
    if (const YamlNode* attention = reader.optional("diffusion_attention_config")) {
      YamlReader map(*attention, reader.path_of("diffusion_attention_config"));
      if (const YamlNode* roles = map.optional("per_role")) {
        YamlReader inner(*roles, map.path_of("per_role"));
        read_map(inner, role, YamlMap::attention_roles, "diffusion_attention_config.per_role.");
      }
      read_map(map, role, YamlMap::attention, "diffusion_attention_config.");
    }
    read_map(reader, role, YamlMap::stage, "");
  }

  void read_sampling(YamlReader& map, Role role) {
    if (const YamlNode* extra = map.optional("extra_args")) {
      YamlReader inner(*extra, map.path_of("extra_args"));
      read_map(inner, role, YamlMap::extra_args, "default_sampling_params.extra_args.");
    }
    read_map(map, role, YamlMap::sampling, "default_sampling_params.");
  }

  // "0" is CUDA device 0; every stage names the same one.
  void read_devices(const YamlNode& node, const YamlReader& stage) {
    const std::string path = stage.path_of("devices");
    const std::string text = scalar_text(node, path);
    const bool number = !text.empty() && text.size() <= 3 &&
                        std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    if (!number && text != "cpu") {
      yaml_error(
          node.where, path,
          fmt::format("{} is not supported by this version: a run uses one device; expected the "
                      "number of one GPU, such as \"0\", or cpu",
                      in_quotes(text)));
    }
    if (devices_ && devices_->text != text) {
      yaml_error(
          node.where, path,
          fmt::format("{} is not supported by this version: a run uses one device; the stage "
                      "before has {}",
                      in_quotes(text), in_quotes(devices_->text)));
    }
    devices_ = Devices{text, node.where, path};
  }

  void assign_devices(const YamlNode& tree) {
    const Devices& devices = *devices_;
    if (const YamlEntry* device = tree.find("device")) {
      yaml_error(
          devices.where, devices.path,
          fmt::format("the file has device, too ({}); expected one of them", device->where.text()));
    }
    add(field_index("device"), devices.text == "cpu" ? "cpu" : "cuda:" + devices.text,
        devices.where, devices.path);
  }

  // A stage takes what the one before it left in memory; other ways connect processes.
  void read_inputs(const YamlNode& node, const YamlReader& stage, std::int64_t id) {
    YamlReader map(node, stage.path_of("input_connectors"));
    const std::string from = fmt::format("from_stage_{}", id - 1);
    const YamlNode* connector = id > 0 ? map.optional(from) : nullptr;
    if (connector != nullptr) {
      const std::string path = map.path_of(from);
      const std::string name = scalar_text(*connector, path);
      const bool known = std::ranges::find(connectors_, name) != connectors_.end();
      if (!known && name != "shared_memory_connector") {
        yaml_error(
            connector->where, path,
            fmt::format("unknown connector {} (known: shared_memory_connector)", in_quotes(name)));
      }
    }
    if (id > 0) return map.finish();
    if (!node.entries.empty())
      yaml_error(node.where, map.path_of(""), "stage 0 has no stage before it");
  }

  void read_connectors(const YamlNode& node) {
    YamlReader(node, "connectors");
    for (const YamlEntry& entry : node.entries) {
      YamlReader connector(entry.value, fmt::format("connectors.{}", entry.key));
      const YamlNode& type = connector.required("name");
      connector.refuse("extra", "", "the stages share one process");
      connector.finish();
      if (type.text != "SharedMemoryConnector") {
        yaml_error(type.where, connector.path_of("name"),
                   fmt::format("{} is not supported by this version: the stages share one process; "
                               "expected SharedMemoryConnector",
                               type.description()));
      }
      connectors_.push_back(entry.key);
    }
  }

  struct Devices {
    std::string text;
    YamlWhere where;
    std::string path;
  };
  std::vector<Assignment> assignments_;
  std::vector<std::string> connectors_;
  std::optional<Devices> devices_;
  bool of_edits_ = false;  // of the map that is read
};

// As of every other flag, only one value can be meant.
void require_once(std::span<const std::string> overrides) {
  std::map<std::string_view, std::string_view> values;  // by key
  for (const std::string_view each : overrides) {
    const std::size_t equals = each.find('=');
    if (equals == std::string_view::npos) continue;  // apply_override() says so
    const auto [first, is_new] = values.emplace(each.substr(0, equals), each.substr(equals + 1));
    if (is_new) continue;
    throw InputError("--set: {}: given twice ({} and {}); expected once", first->first,
                     in_quotes(first->second), in_quotes(each.substr(equals + 1)));
  }
}

}  // namespace

std::vector<Assignment> read_stage_tree(const YamlNode& tree) {
  return StageConfigReader().read(tree);
}

std::vector<Assignment> read_stage_config(const std::filesystem::path& file,
                                          std::span<const std::string> overrides) {
  require_once(overrides);
  YamlNode tree = load_stage_tree(file);
  for (const std::string& override_text : overrides) apply_override(tree, override_text);
  return read_stage_tree(tree);
}

}  // namespace diptych

#include "lib/config/stage_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

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
  bool top = false;
  std::span<const StageKind> kinds = {};  // of a stage
  bool has(std::string_view place) const {
    return (top && place == YamlPlace::top) ||
           std::ranges::find(kinds, place, &StageKind::place) != kinds.end();
  }
};

constexpr const char* kModelStage = "model_stage";  // marks the stage in front of the family's
constexpr const char* kEnhancer = "enhancer";
constexpr StageKind kEnhancerStage = {YamlPlace::enhancing, "rewrites prompts"};

std::string number_word(std::size_t number) {
  return number == 2 ? "two" : fmt::format("{}", number);
}

// As the Python servers' stage files spell them.
struct ConnectorType {
  std::string_view type;
  Connector connector;
};
constexpr std::array<ConnectorType, 3> kConnectorTypes = {
    {{"SharedMemoryConnector", Connector::shared_memory},
     {"InProcessConnector", Connector::in_process},
     {"C10dConnector", Connector::c10d}}};

class StageConfigReader {
 public:
  explicit StageConfigReader(const FamilyConfig& family) : family_(family) {}

  std::vector<Assignment> read(const YamlNode& tree) {
    YamlReader file(tree, "");
    if (const YamlEntry* old = tree.find("stage_args")) {
      yaml_error(old->where, "stage_args",
                 fmt::format("the old layout, replaced by `stages`: a list of maps with stage_id "
                             "and the keys themselves (see stage_configs/{}.yaml)",
                             family_.name));
    }
    if (const YamlNode* base = file.optional("base_config")) {
      yaml_error(base->where, "base_config", "cannot be set here; write a file that inherits");
    }
    if (const YamlNode* connectors = file.optional("connectors")) read_connectors(*connectors);
    const YamlNode& stages = file.required("stages");
    require_stage_list(stages);
    read_map(file, {.top = true}, YamlMap::file, "");
    read_stages(stages);
    if (devices_ || reading_devices_) assign_devices(tree);
    assign_connector();
    return std::move(assignments_);
  }

 private:
  void add(std::size_t field, std::string text, const YamlWhere& where, const std::string& path) {
    const std::string place = where.text();
    // A flag that is given for many keys says which one it is.
    std::string origin = where.in_file() ? place : fmt::format("{} {}", place, path);
    assignments_.push_back({field, std::move(text), std::move(origin),
                            fmt::format("{}: {}", place, path), !where.in_file(),
                            task_ == nullptr ? "" : task_->name});
  }

  // The fields whose key is `prefix` + one name, then the keys that are refused; then nothing may
  // be left in the map.
  void read_map(YamlReader& reader, Role role, YamlMap map, std::string_view prefix) {
    for (std::size_t i = 0; i < family_.fields.size(); ++i) {
      const Field& field = family_.fields[i];
      if (!field.yaml.starts_with(prefix)) continue;
      const std::string_view key = field.yaml.substr(prefix.size());
      if (key.empty() || key.find('.') != std::string_view::npos) continue;
      if (!family_.uses(field.name) && is_refused(map, key)) continue;  // with its reason, below
      if (role.has(field.place)) {
        const YamlNode* node = reader.optional(key);
        const std::string path = reader.path_of(key);
        if (node != nullptr) add(i, field_text(field, *node, path), node->where, path);
      } else if (!role.top && !known_elsewhere(field, role)) {
        refuse_of_other_stage(reader, key, field.place, role);
      }
    }
    refuse_keys(family_.refused, reader, map);
    refuse_keys(refused_keys(), reader, map);
    reader.finish();
  }

  bool is_refused(YamlMap map, std::string_view key) const {
    const auto is_it = [&](const RefusedKey& each) { return each.map == map && each.key == key; };
    return std::ranges::any_of(family_.refused, is_it) ||
           std::ranges::any_of(refused_keys(), is_it);
  }

  static void refuse_keys(std::span<const RefusedKey> keys, YamlReader& reader, YamlMap map) {
    for (const RefusedKey& refused : keys) {
      if (refused.map != map || reader.asked_for(refused.key)) continue;
      const RefusedKey* common = find_refused(refused_keys(), map, refused.key);
      reader.refuse(refused.key, common == nullptr ? refused.off : common->off, refused.why);
    }
  }

  void refuse_of_other_stage(YamlReader& reader, std::string_view key, std::string_view place,
                             Role role) const {
    const auto owner = std::ranges::find(family_.stages, place, &StageKind::place);
    if (owner == family_.stages.end()) return;
    reader.refuse(
        key, "",
        task_ != nullptr
            ? fmt::format("it belongs to default_sampling_params of the stage that {}", owner->does)
            : of_other_stage(role, owner->does));
  }
  static std::string of_other_stage(Role role, std::string_view owner_does) {
    return fmt::format("this stage {}; the key belongs to the one that {}", role.kinds.front().does,
                       owner_does);
  }

  // Both stages have, say, diffusion_attention_config.
  bool known_elsewhere(const Field& field, Role role) const {
    return std::ranges::any_of(family_.fields, [&](const Field& other) {
      return role.has(other.place) && other.yaml == field.yaml;
    });
  }

  void read_stages(const YamlNode& stages) {
    const std::span<const StageKind> kinds = family_.stages;
    const std::size_t enhancers = has_enhancer(stages) ? 1 : 0;  // ahead of the family's stages
    const std::size_t own = stages.items.size() - enhancers;
    if (own != 1 && own != kinds.size()) {
      yaml_error(stages.where, "stages",
                 fmt::format("{} stages{}; expected one{}", own,
                             enhancers > 0 ? " behind the enhancer" : "", or_one_of_each(kinds)));
    }
    for (const YamlNode& stage : stages.items) {
      const std::int64_t id = stage_id_of(stage, "stages");
      const auto count = static_cast<std::int64_t>(stages.items.size());
      if (id >= count) {
        yaml_error(stage.where, "stages",
                   fmt::format("stage_id {} of {} stage{}; they count from 0", id, count,
                               count == 1 ? "" : "s"));
      }
      const auto place = static_cast<std::size_t>(id);
      if (place < enhancers) {
        read_stage(stage, id, {.kinds = std::span(&kEnhancerStage, 1)});
      } else {
        read_stage(stage, id, {.kinds = own == 1 ? kinds : kinds.subspan(place - enhancers, 1)});
      }
    }
  }

  // Whether stage 0 rewrites prompts for the others.
  bool has_enhancer(const YamlNode& stages) const {
    bool found = false;
    for (const YamlNode& stage : stages.items) {
      const YamlEntry* marker = stage.find(kModelStage);
      if (marker == nullptr) continue;
      const std::int64_t id = stage_id_of(stage, "stages");
      const std::string path = fmt::format("stages.{}.{}", id, kModelStage);
      const std::string name = scalar_text(marker->value, path);
      if (name != kEnhancer) {
        yaml_error(marker->value.where, path,
                   fmt::format("found {}, expected {}, a stage in front of the family's that "
                               "rewrites prompts; other stages do not have the key",
                               in_quotes(name), kEnhancer));
      }
      if (!family_.uses("enhance_prompt")) {
        yaml_error(
            marker->value.where, path,
            fmt::format("the family {} paints nothing; expected no {}", family_.name, kEnhancer));
      }
      if (id != 0) {
        yaml_error(marker->value.where, path,
                   fmt::format("stage {} is the {}; expected stage 0, in front of all others", id,
                               kEnhancer));
      }
      found = true;
    }
    return found;
  }

  static std::string or_one_of_each(std::span<const StageKind> kinds) {
    if (kinds.size() == 1) return "";
    std::vector<std::string> each;
    for (const StageKind& kind : kinds) each.push_back(fmt::format("one {}", kind.does));
    return fmt::format(" that does all, or {}: {}", number_word(kinds.size()),
                       fmt::join(each, ", "));
  }

  void read_stage(const YamlNode& stage, std::int64_t id, Role role) {
    YamlReader reader(stage, fmt::format("stages.{}", id));
    reader.required("stage_id");
    if (role.has(YamlPlace::enhancing)) reader.optional(kModelStage);
    if (const YamlNode* devices = reader.optional("devices")) read_devices(*devices, reader, role);
    if (const YamlNode* inputs = reader.optional("input_connectors"))
      read_inputs(*inputs, reader, id, role);
    if (const YamlNode* sampling = reader.optional("default_sampling_params")) {
      YamlReader map(*sampling, reader.path_of("default_sampling_params"));
      read_sampling(map, role);
    }
    for (const Task& task : family_.tasks) read_task(reader, role, task);
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

  // What holds for one task alone stands in the stage that makes its result.
  void read_task(YamlReader& reader, Role role, const Task& task) {
    if (task.sampling_key.empty()) return;
    const StageKind& maker = family_.stages.back();
    if (!role.has(maker.place))
      return reader.refuse(task.sampling_key, "", of_other_stage(role, maker.does));
    const YamlNode* values = reader.optional(task.sampling_key);
    if (values == nullptr) return;
    YamlReader map(*values, reader.path_of(task.sampling_key));
    if (task.size_of_input) {
      for (const char* side : {"width", "height"})
        map.refuse(side, "",
                   task.makes == MediaKind::clip
                       ? "the video has the size of what it is made from"
                       : "an edited picture has the size of the last one that it is made from");
    }
    if (task.frames_of_input)
      map.refuse("num_frames", "",
                 "the video has as many frames as are taken from the one it reads");
    task_ = &task;
    read_sampling(map, {.kinds = std::span(family_.stages).last(1)});
    task_ = nullptr;
  }

  void read_sampling(YamlReader& map, Role role) {
    if (const YamlNode* extra = map.optional("extra_args")) {
      YamlReader inner(*extra, map.path_of("extra_args"));
      read_map(inner, role, YamlMap::extra_args, "default_sampling_params.extra_args.");
    }
    read_map(map, role, YamlMap::sampling, "default_sampling_params.");
  }

  struct Devices {
    std::string text;
    YamlWhere where;
    std::string path;
  };

  // "0" is CUDA device 0. The stage that reads may name another one than those behind it.
  void read_devices(const YamlNode& node, const YamlReader& stage, Role role) {
    const std::string path = stage.path_of("devices");
    const std::string text = scalar_text(node, path);
    const bool number = !text.empty() && text.size() <= 3 &&
                        std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    if (!number && text != "cpu") {
      yaml_error(node.where, path,
                 fmt::format("{} is not supported by this version: a stage uses one device; "
                             "expected the number of one GPU, such as \"0\", or cpu",
                             in_quotes(text)));
    }
    const Devices devices = {text, node.where, path};
    const bool reads = role.kinds.size() == 1 && role.has(YamlPlace::reading) &&
                       family_.stages.size() > 1 && family_.uses("read_device");
    if (reads) {
      reading_devices_ = devices;
      return;
    }
    if (devices_ && devices_->text != text) {
      yaml_error(
          node.where, path,
          fmt::format("{} is not supported by this version: these stages use one device; the stage "
                      "before has {}",
                      in_quotes(text), in_quotes(devices_->text)));
    }
    devices_ = devices;
  }

  void assign_devices(const YamlNode& tree) {
    const Devices& devices = devices_ ? *devices_ : *reading_devices_;
    if (const YamlEntry* device = tree.find("device")) {
      yaml_error(
          devices.where, devices.path,
          fmt::format("the file also has device ({}); expected one of them", device->where.text()));
    }
    add_device("device", devices);
    if (devices_ && reading_devices_ && devices_->text != reading_devices_->text)
      add_device("read_device", *reading_devices_);
  }

  void add_device(std::string_view field, const Devices& devices) {
    add(field_index(field), devices.text == "cpu" ? "cpu" : "cuda:" + devices.text, devices.where,
        devices.path);
  }

  // How a stage gets what the one before it has left. Where both are one model, that is at hand.
  void read_inputs(const YamlNode& node, const YamlReader& stage, std::int64_t id, Role role) {
    YamlReader map(node, stage.path_of("input_connectors"));
    const std::string from = fmt::format("from_stage_{}", id - 1);
    const YamlNode* connector = id > 0 ? map.optional(from) : nullptr;
    if (connector != nullptr) {
      const std::string path = map.path_of(from);
      const std::string name = scalar_text(*connector, path);
      const auto known = connectors_.find(name);
      if (known == connectors_.end()) {
        std::vector<std::string_view> names;
        for (const auto& [each, unused] : connectors_) names.push_back(each);
        yaml_error(connector->where, path,
                   fmt::format("unknown connector {} (known: {})", in_quotes(name),
                               fmt::join(names, ", ")));
      }
      if (role.has(YamlPlace::painting) && family_.uses("connector")) {
        connector_ = {known->second, connector->where, path};
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
      connector.refuse("extra", "", "the connectors of this version have no settings");
      connector.finish();
      const auto kind = std::ranges::find(kConnectorTypes, type.text, &ConnectorType::type);
      if (kind == kConnectorTypes.end()) {
        yaml_error(type.where, connector.path_of("name"),
                   fmt::format("{} is not supported by this version; expected "
                               "SharedMemoryConnector, InProcessConnector or C10dConnector",
                               type.description()));
      }
      connectors_[entry.key] = kind->connector;
    }
  }

  // Where the stages are apart; else the stage config names what is not needed.
  void assign_connector() {
    if (!connector_ || !devices_ || !reading_devices_ || devices_->text == reading_devices_->text)
      return;
    add(field_index("connector"), std::string(name_of(connector_->connector)), connector_->where,
        connector_->path);
  }

  struct NamedConnector {
    Connector connector;
    YamlWhere where;
    std::string path;
  };
  const FamilyConfig& family_;
  std::vector<Assignment> assignments_;
  std::map<std::string, Connector, std::less<>> connectors_ = {
      {"shared_memory_connector", Connector::shared_memory},
      {"in_process_connector", Connector::in_process},
      {"c10d_connector", Connector::c10d}};
  std::optional<NamedConnector> connector_;
  std::optional<Devices> devices_, reading_devices_;
  const Task* task_ = nullptr;  // whose values alone are read
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

std::vector<Assignment> read_stage_tree(const YamlNode& tree, const FamilyConfig& family) {
  return StageConfigReader(family).read(tree);
}

YamlNode load_stage_config(const std::filesystem::path& file,
                           std::span<const std::string> overrides) {
  require_once(overrides);
  YamlNode tree = load_stage_tree(file);
  for (const std::string& override_text : overrides) apply_override(tree, override_text);
  return tree;
}

}  // namespace diptych

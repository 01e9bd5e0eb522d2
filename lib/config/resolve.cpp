#include "lib/config/resolve.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "lib/base/error.h"
#include "lib/base/folder.h"
#include "lib/base/utf8.h"
#include "lib/config/demo_choice.h"
#include "lib/config/family_fields.h"
#include "lib/config/field_text.h"
#include "lib/config/flag_hints.h"
#include "lib/config/given_texts.h"
#include "lib/config/stage_config.h"
#include "lib/config/task.h"
#include "lib/config/words.h"

namespace diptych {
namespace {

// What a family can tell of a folder that is none of its checkpoints; empty: nothing.
std::string foreign_model(const std::filesystem::path& folder,
                          std::span<const FamilyConfig* const> families) {
  for (const FamilyConfig* family : families) {
    if (family->describe_foreign == nullptr) continue;
    if (std::string found = family->describe_foreign(folder); !found.empty()) return found;
  }
  return "";
}

namespace fs = std::filesystem;

class Resolver {
 public:
  explicit Resolver(const Sources& sources) : sources_(sources), given_(sources) {}

  Resolved run() {
    const std::vector<Assignment> stage_values = read_file();
    given_.take_other_names(fields());
    refuse_flags_of_other_families();
    apply_file(stage_values, false);
    // Variables may serve requests to other families.
    apply([this](std::string_view flags) { return given_.from_environment(flags); },
          Unused::ignored);
    apply_file(stage_values, true);
    apply([this](std::string_view flags) { return given_.from_flags(flags); }, Unused::refused);
    apply_inputs();
    resolved_.options.run.negative_file = sources_.negative_file;
    return std::move(resolved_);
  }

 private:
  enum class Unused { ignored, refused };  // values that the family has no use for

  void set(std::size_t index, const std::string& text, const std::string& where,
           const std::string& origin, bool from_stage_config = false) {
    if (std::holds_alternative<TaskSlot>(fields()[index].slot)) refuse_unknown_video(text, where);
    assign(fields()[index], resolved_.options, text, where);
    resolved_.note(index, origin, from_stage_config);
  }

  // The nearest known task would be no help.
  void refuse_unknown_video(const std::string& task, const std::string& where) const {
    if (!is_video_task(task) || resolved_.options.run.family->find_task(task) != nullptr) return;
    throw InputError("{}: {}: {}", where, in_quotes(task), who_makes(kVideos, sources_.families));
  }

  std::span<const Field> fields() const { return fields_of(resolved_.options); }

  void start_with(const FamilyConfig& family) {
    const bool uses_demo = resolved_.uses_demo;
    resolved_ = without_sources(default_options(family));
    resolved_.uses_demo = uses_demo;
  }

  // `tree`: the stage config's, null without one.
  void choose_family(const YamlNode* tree) {
    const FamilyConfig& first = *sources_.families.at(0);
    if (const YamlEntry* name = tree == nullptr ? nullptr : tree->find("pipeline")) {
      const auto named = std::ranges::find(sources_.families, std::string_view(name->value.text),
                                           [](const FamilyConfig* each) { return each->name; });
      if (named == sources_.families.end()) {
        if (name->value.where.in_file()) refuse_unknown_family(name->value);
        return start_with(first);  // --set is told of as a flag later
      }
      refuse_model_of_another(**named, *tree, name->value.where);
      return start_with(**named);
    }
    const std::optional<Given> model = find_model(tree);
    const FamilyConfig* owner = model ? owner_of(model->text) : nullptr;
    if (model && !model->text.empty() && owner == nullptr) {
      refuse_part(*model);
      // That of a stage config is told of where it is opened.
      if (find_model(nullptr)) refuse_unknown_model(*model);
    }
    start_with(owner == nullptr ? first : *owner);
    if (owner != nullptr && owner != &first)
      resolved_.note(field_index("pipeline"), fmt::format("the folder of {}", model->origin));
  }

  // Before its keys are held against those of another.
  [[noreturn]] void refuse_unknown_family(const YamlNode& name) const {
    std::vector<std::string_view> known;
    for (const FamilyConfig* family : sources_.families) known.push_back(family->name);
    yaml_error(name.where, "pipeline",
               fmt::format("unknown family '{}' (known: {})", name.text, fmt::join(known, ", ")));
  }

  // A folder or a file of a checkpoint that is known, and nothing that a family can tell of itself.
  void refuse_part(const Given& model) const {
    if (!foreign_model(model.text, sources_.families).empty()) return;
    std::error_code error;
    const std::filesystem::path whole =
        std::filesystem::weakly_canonical(model.text, error).parent_path();
    if (error || !std::filesystem::exists(model.text, error)) return;
    const FamilyConfig* owner = owner_of(whole);
    if (owner == nullptr) return;
    throw InputError("{}: {}: is a part of a checkpoint of {}; expected its folder, {}",
                     model.origin, model.text, owner->name, whole.string());
  }

  [[noreturn]] void refuse_unknown_model(const Given& model) const {
    require_folder(model.text, model.origin);
    throw InputError("{}: {}", model.origin, about_unknown_folder(model.text, sources_.families));
  }

  // A stage config names the family; the folder may be named elsewhere.
  void refuse_model_of_another(const FamilyConfig& family, const YamlNode& tree,
                               const YamlWhere& where) const {
    const std::optional<Given> model = find_model(&tree);
    const FamilyConfig* owner = model ? owner_of(model->text) : nullptr;
    if (owner == nullptr || owner == &family) return;
    throw InputError("{}: {}: holds a checkpoint of the family {}, but {} is for the family {}",
                     model->origin, model->text, owner->name, where.text(), family.name);
  }

  std::optional<Given> find_model(const YamlNode* tree) const {
    std::optional<Given> model = given_.of("model");
    if (model || tree == nullptr) return model;
    const std::string_view key = all_fields()[field_index("model")].yaml;
    const YamlEntry* entry = tree->find(key);
    if (entry == nullptr || entry->value.kind != YamlNode::Kind::scalar) return std::nullopt;
    return Given{path_text(entry->value, key), entry->value.where.text()};
  }

  // Config files that cannot be read are told of where the model is opened.
  const FamilyConfig* owner_of(const std::filesystem::path& folder) const {
    const auto owns = [&](const FamilyConfig* family) {
      try {
        return family->owns(folder);
      } catch (const InputError&) {
        return false;
      } catch (const std::filesystem::filesystem_error&) {
        return false;
      }
    };
    const auto owner = std::ranges::find_if(sources_.families, owns);
    return owner == sources_.families.end() ? nullptr : *owner;
  }

  // Their variables are ignored: these may serve other requests.
  void refuse_flags_of_other_families() const {
    for (const FamilyConfig* family : sources_.families) {
      for (const Field& field : family->fields) {
        if (field.flags.empty() || is_flag_of_family(field.flags)) continue;
        if (const auto given = given_.from_flags(field.flags)) {
          throw InputError("{}: belongs to the family {}, found the family {}", given->origin,
                           family->name, resolved_.options.run.family->name);
        }
      }
    }
  }
  bool is_flag_of_family(std::string_view flags) const {
    return std::ranges::find(fields(), flags, &Field::flags) != fields().end();
  }

  // Each kind has one source: its flags, else its variable. That of a kind which the family does
  // not read may serve requests to other families.
  std::optional<Given> input_variable(MediaKind kind) const {
    const bool given =
        std::ranges::find(sources_.inputs, kind, &FlagInput::kind) != sources_.inputs.end();
    if (given || !resolved_.options.run.family->reads(kind)) return std::nullopt;
    std::string name = environment_name(input_name(kind));
    const std::optional<std::string> text = sources_.environment(name);
    if (!text || text->empty()) return std::nullopt;
    return Given{*text, std::move(name)};
  }

  void apply_inputs() {
    std::vector<FlagInput> inputs;  // files of variables come first, texts of variables last
    std::string origin = sources_.inputs.empty() ? "" : "--prompt/--image";
    if (std::ranges::find(sources_.inputs, MediaKind::clip, &FlagInput::kind) !=
        sources_.inputs.end())
      origin += "/--video";
    const auto note = [&](MediaKind kind, const std::string& variable) {
      origin += (origin.empty() ? "" : ", ") + variable;
      resolved_.input_places[kind] = variable;
    };
    for (const MediaKind kind : {MediaKind::picture, MediaKind::clip}) {
      const std::optional<Given> files = input_variable(kind);
      if (!files) continue;
      if (split_list(files->text).empty())
        throw InputError("{}: found {}, expected files of {}", files->origin,
                         in_quotes(files->text), kind_name(kind));
      for (const std::string_view path : split_list(files->text))
        inputs.push_back({kind, std::string(path)});
      note(kind, files->origin);
    }
    inputs.insert(inputs.end(), sources_.inputs.begin(), sources_.inputs.end());
    if (const std::optional<Given> prompt = input_variable(MediaKind::text)) {
      inputs.push_back({MediaKind::text, prompt->text});
      note(MediaKind::text, prompt->origin);
    }
    if (inputs.empty()) return;
    for (const FlagInput& input : inputs) take_input(input);
    resolved_.note(field_index("inputs"), origin);
  }

  void take_input(const FlagInput& input) {
    const std::string& place = resolved_.input_places[input.kind];
    std::vector<InputItem>& items = resolved_.options.run.inputs;
    if (input.kind == MediaKind::text) {
      check_text(input.text, place);
      items.push_back({input.text, {}});
      return;
    }
    if (input.text.empty())
      throw InputError("{}: is empty; expected the file of a {}", place,
                       input.kind == MediaKind::clip ? "video" : "picture");
    items.push_back(InputItem::of_file(input.kind, input.text));
  }

  // The stage config of the strongest source that names one, and the demo where none does.
  std::vector<Assignment> read_file() {
    const Field& config = all_fields()[field_index("config")];
    const std::optional<Given> file = given_.of("config");
    if (!file && !given_.of("model")) return read_demo();
    if (!file) {
      if (!sources_.overrides.empty())
        throw InputError("--set: edits a stage config; give one with -c");
      choose_family(nullptr);
      return {};
    }
    Options named;
    assign(config, named, file->text, file->origin);
    require_stage_config(named.config, file->origin);
    const YamlNode tree = load_stage_config(named.config, sources_.overrides);
    choose_family(&tree);
    set(field_index("config"), file->text, file->origin, file->origin);
    return read_stage_tree(tree, *resolved_.options.run.family);
  }

  std::vector<Assignment> read_demo() {
    const auto [family, flag] = given_.family_of_flags();
    if (family == nullptr) refuse_task_of_no_demo(sources_, given_);
    const fs::path* demo = find_demo(sources_, given_, family);
    if (demo == nullptr && family != nullptr) {
      require_dummy_weights(sources_, given_, *family, flag);
      start_with(*family);
      resolved_.note(field_index("pipeline"), flag);
      return {};
    }
    if (demo == nullptr) {
      throw InputError(
          "-c/--config: not given, and stage_configs/demo was not found; give a stage config");
    }
    resolved_.uses_demo = true;
    const YamlNode tree = load_stage_config(*demo, sources_.overrides);
    choose_family(&tree);
    resolved_.options.config = *demo;
    return read_stage_tree(tree, *resolved_.options.run.family);
  }

  // What is wrong inside a file is named by its place there.
  static void require_stage_config(const std::filesystem::path& file, const std::string& origin) {
    std::error_code error;
    if (std::filesystem::exists(file, error)) return;
    throw InputError("{}: {}: {}", origin, file.string(),
                     error ? error.message() : why_missing(file));
  }

  void apply_file(const std::vector<Assignment>& values, bool from_set) {
    for (const Assignment& value : values) {
      if (value.from_set == from_set && value.task.empty())
        set(value.field, value.text, value.where, value.origin, !from_set);
    }
    for (const Assignment& value : values) {
      if (value.from_set != from_set || value.task.empty()) continue;
      Options checked = resolved_.options;
      assign(fields()[value.field], checked, value.text, value.where);
      resolved_.task_values.push_back({value.task, value.field, value.text, value.where,
                                       value.origin, resolved_.origins[value.field], !from_set});
    }
  }

  bool uses(std::string_view field) const { return resolved_.options.run.family->uses(field); }

  // One strength of source: groups first, then their fields, which must not repeat them. A group
  // sets those of its fields that are of use.
  template <typename Lookup>
  void apply(Lookup lookup, Unused unused) {
    std::map<std::string_view, std::string> by_group;  // field -> origin
    for (const FlagGroup& group : all_flag_groups()) {
      const std::optional<Given> given = lookup(group.flags);
      if (!given) continue;
      const auto expanded = group.expand(given->text, given->origin);
      const bool of_use =
          std::ranges::any_of(expanded, [&](const auto& part) { return uses(part.first); });
      for (const auto& [name, text] : expanded) {
        if (!uses(name) && (of_use || unused == Unused::ignored)) continue;
        const std::size_t field = field_index(name);
        set(field, text, value_place(all_fields()[field], given->origin), given->origin);
        by_group[name] = given->origin;
      }
    }
    for (std::size_t i = 0; i < fields().size(); ++i) {
      const Field& field = fields()[i];
      if (field.flags.empty() || (!uses(field.name) && unused == Unused::ignored)) continue;
      const std::optional<Given> given = lookup(field.flags);
      if (!given) continue;
      if (const auto group = by_group.find(field.name); group != by_group.end()) {
        throw InputError("{}: given together with {}; expected one of them", given->origin,
                         group->second);
      }
      set(i, given->text, given->origin, given->origin);
    }
  }

  const Sources& sources_;
  GivenTexts given_;
  Resolved resolved_;
};

// A value as YAML would have it: in quotes where it could be read as something else.
std::string yaml_value(const nlohmann::ordered_json& value) {
  if (!value.is_string()) return value.dump();
  const auto text = value.get<std::string>();
  constexpr std::string_view kHarmless =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:-";
  const bool plain = !text.empty() && text.find_first_not_of(kHarmless) == std::string::npos &&
                     std::string_view("-:").find(text.front()) == std::string_view::npos &&
                     text.back() != ':';
  return plain ? text
               : value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

std::string about_unknown_folder(const std::filesystem::path& folder,
                                 std::span<const FamilyConfig* const> families) {
  std::vector<std::string_view> names;
  for (const FamilyConfig* family : families) names.push_back(family->name);
  const std::string found = foreign_model(folder, families);
  return fmt::format("{}: holds no checkpoint of {}{}{}", folder.string(), fmt::join(names, ", "),
                     found.empty() ? "" : ": ", found);
}

std::string value_place(const Field& field, std::string_view origin) {
  std::vector<std::string> own = {std::string(field.name)};
  for (const std::string_view flag : long_names(field.flags)) {
    own.emplace_back(flag);
    own.push_back(environment_name(flag));
    own.push_back(with_underscores(flag));
  }
  const bool is_own =
      std::ranges::any_of(own, [&](const std::string& name) { return origin.ends_with(name); });
  return is_own ? std::string(origin) : fmt::format("{}: {}", origin, field.name);
}

std::optional<std::size_t> field_of_setting(std::string_view name, std::span<const Field> fields) {
  if (kind_of_input(name)) return field_index("inputs", fields);
  const auto found = std::ranges::find(fields, name, &Field::name);
  if (found == fields.end()) return std::nullopt;
  return static_cast<std::size_t>(found - fields.begin());
}

SettingView setting_view(const Setting& setting, const Resolved& resolved) {
  const auto fields = fields_of(resolved.options);
  const auto index = field_of_setting(setting.name, fields);
  if (!index || !setting.given) return {setting.label};
  const std::string& origin = resolved.origins[*index];
  if (origin == kOfDefaults) return {setting.label, true};
  if (const auto kind = kind_of_input(setting.name)) return {resolved.input_places.at(*kind)};
  const Field& field = fields[*index];
  // One flag stands for all of them.
  if (std::holds_alternative<AttentionSlot>(field.slot)) return {origin};
  return {origin == flag_label(field.flags) ? setting.label : value_place(field, origin)};
}

std::string error_text(const InputError& error, const Resolved& resolved) {
  const SettingProblem* problem = error.problem();
  return problem == nullptr ? error.what()
                            : problem_text(*problem, setting_view(problem->setting, resolved));
}

Resolved without_sources(Options options) {
  Resolved resolved;
  resolved.options = std::move(options);
  const std::size_t count = fields_of(resolved.options).size();
  resolved.origins.assign(count, std::string(kOfDefaults));
  resolved.of_stage_config.assign(count, false);
  return resolved;
}

void give(Resolved& resolved, const std::vector<GivenValue>& values) {
  const auto fields = fields_of(resolved.options);
  for (const GivenValue& value : values) {
    assign(fields[value.field], resolved.options, value.text, value.where);
    resolved.note(value.field, value.where);
  }
}

Resolved resolve_sources(const Sources& sources) {
  return Resolver(sources).run();
}

Resolved resolve(const Sources& sources) {
  Resolved resolved = resolve_sources(sources);
  settle_task(resolved);
  return resolved;
}

std::string config_table(const Resolved& resolved) {
  constexpr std::size_t kColumn = 40;
  std::string table;
  const auto fields = fields_of(resolved.options);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const Field& field = fields[i];
    if (!resolved.options.run.family->uses(field.name)) continue;
    const bool of_input = is_of_input(field, resolved.options.run.sampling);
    const bool drawn =
        std::holds_alternative<SeedSlot>(field.slot) && resolved.options.run.sampling.seed_drawn;
    const std::string value = of_input ? "auto"
                              : drawn  ? std::string(kRandomSeed)
                                       : yaml_value(value_json(field, resolved.options));
    const std::string line = fmt::format("{}: {}", field.name, value);
    table += fmt::format(
        "{:<{}}  # {}\n", line, kColumn,
        of_input ? fmt::format("{}'s", sized_by(resolved.options.run)) : resolved.origins[i]);
  }
  return table;
}

}  // namespace diptych
